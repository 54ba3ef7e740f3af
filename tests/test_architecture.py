"""The house: imports point one way, no module is long, no mechanism is known by name below the experiments."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from jaxprivrl.learners import LEARNERS
from jaxprivrl.privatizers import PRIVATIZERS

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "jaxprivrl").rglob("*.py"))


def architecture():
    """The script that draws the picture, as a module."""
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_imports_point_upward_only():
    graph = architecture()
    edges = graph.imports()
    assert len(edges) > 300
    assert graph.upward(edges) == []


def test_control_an_import_the_other_way_is_found():
    graph = architecture()
    wrong = [("jaxprivrl.privacy.laws", "jaxprivrl.privatizers.tree", 1), ("jaxprivrl.mdp", "jaxprivrl.cli", 2),
             ("jaxprivrl.new_folder.x", "jaxprivrl.mdp", 3)]  # fmt: skip
    assert len(graph.upward(wrong)) == 3


def test_every_folder_says_what_may_be_imported():
    folders = [p for p in (ROOT / "jaxprivrl").iterdir() if (p / "__init__.py").exists()]
    assert len(folders) >= 10
    for folder in folders:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert 2 <= len(text.splitlines()) <= 8, folder
        assert "import" in text.lower(), folder


@pytest.mark.parametrize("path", MODULES, ids=[str(p.relative_to(ROOT / "jaxprivrl")) for p in MODULES])
def test_modules_are_short(path):
    assert len(path.read_text().splitlines()) <= 500


def strings_of(path):
    """String literals that are code, not prose: docstrings and the texts of errors are left out."""
    tree = ast.parse(path.read_text())
    prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            and id(n) not in prose}  # fmt: skip


@pytest.mark.parametrize("folder", ["privacy", "engine", "audit", "learners", "numerics"])
def test_no_mechanism_is_known_by_name(folder):
    """No string of code in these folders is the name of a privatizer; nor, but where they are made, of a learner.

    "exact" is a kind of score in audits as well, and is left out.
    """
    names = set(PRIVATIZERS) - {"exact"} | (set() if folder == "learners" else set(LEARNERS))
    for path in (ROOT / "jaxprivrl" / folder).rglob("*.py"):
        named = strings_of(path) & names
        assert not named, f"{path} knows {named}"


def test_the_picture_is_drawn(tmp_path):
    out = tmp_path / "architecture.png"
    assert architecture().main(["--out", str(out)]) == 0
    assert out.stat().st_size > 10_000
    assert (ROOT / "docs" / "architecture.svg").exists()


def test_chex_is_used_and_imported_where_programs_are_traced():
    users = [p for p in MODULES if "import chex" in p.read_text()]
    assert users, "a dependency that no file imports is no dependency"


@pytest.mark.skipif(sys.platform == "win32", reason="paths")
def test_the_package_reads_nothing_outside_its_own_tree():
    for path in MODULES:
        for text in strings_of(path):
            assert not text.startswith(("/work", "/home", "/root")), path


def test_the_tables_of_the_readme_are_those_of_the_registries():
    """`python docs/readme_tables.py` makes them."""
    spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "docs" / "readme_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.README.read_text(encoding="utf-8")
    assert module.rewritten(text) == text
    assert module.rewritten(text.replace("`central_blt` | JDP", "`central_blt` | LDP", 1)) == text, "the control"
