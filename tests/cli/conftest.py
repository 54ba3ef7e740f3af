"""Fixtures of the tests of the command line: commands run in process, in an empty folder."""

import numpy as np
import pieces
import pytest
from commands import SMALL

from jaxprivrl.__main__ import main


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pieces.quick_sweeps():
        yield


@pytest.fixture(scope="module")
def mdp_file(tmp_path_factory):
    """A small MDP of a user: two steps, two states, two actions."""
    mdp = pieces.random_mdp(0, (2, 2, 2))
    path = tmp_path_factory.mktemp("mdp") / "small.npz"
    np.savez(path, costs=mdp.costs, transitions=mdp.transitions, initial=mdp.initial)
    return str(path)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def swept(mdp_file, tmp_path_factory):
    """A run folder made by the command line, and what was typed."""
    out = tmp_path_factory.mktemp("runs") / "central"
    command = ["sweep", "--mdp", mdp_file, *SMALL, "--epsilons", "50", "--out", str(out)]
    assert main(command) == 0
    return out, command
