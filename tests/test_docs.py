"""The README's quick start runs, its tables name what is registered, the notebooks execute from top to bottom."""

import pkgutil
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

import jaxprivrl
from jaxprivrl.cli import COMMANDS
from jaxprivrl.learners import LEARNERS
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.published import experiment as published

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


def test_readme_shows_only_commands_that_exist():
    shown = re.findall(r"(?:^|`)jaxprivrl ([a-z]+)", README, re.M)
    assert shown and set(shown) <= set(COMMANDS)
    assert all(f"jaxprivrl {name}" in README or f"`{name}`" in README for name in COMMANDS)


def test_public_names_mean_the_same_before_and_after_they_are_used():
    """A public name that is also the name of a folder would turn into that folder once it is imported."""
    names = [name for name in dir(jaxprivrl) if name in jaxprivrl._PUBLIC]
    assert set(names) == set(jaxprivrl._PUBLIC)
    assert not set(names) & {module.name for module in pkgutil.iter_modules(jaxprivrl.__path__)}
    found = {name: getattr(jaxprivrl, name) for name in names}
    assert all(getattr(jaxprivrl, name) is value for name, value in found.items())


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
