"""The README's quick start runs, its tables name what is registered, the notebooks execute from top to bottom."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

from jaxprivrl import published
from jaxprivrl.learners import LEARNERS
from jaxprivrl.privatizers import PRIVATIZERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_quick_start_runs(tmp_path, monkeypatch):
    block = re.search(r"```python\n(.*?)```", README, re.S)
    assert block, "README has no Python block"
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 12
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(block[1], "README.md", "exec"), names)
    assert (tmp_path / "regret.png").stat().st_size > 10_000
    assert names["data"].sizes["episode"] > 10


@pytest.mark.parametrize("name", [*LEARNERS, *PRIVATIZERS, *published.LEARNERS, *published.PRIVATIZERS])
def test_readme_names_everything_registered(name):
    assert f"`{name}`" in README


def test_readme_figures_exist():
    for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_executes(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    stored = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert stored, "committed without outputs"
    assert path.stat().st_size < 500_000
    nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 2
