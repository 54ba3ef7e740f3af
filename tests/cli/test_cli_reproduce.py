"""`jaxprivrl reproduce`."""

import json
from pathlib import Path

import pytest
from commands import check_refused, files

from jaxprivrl.environments import make
from jaxprivrl.mdp import uniform_regret


def test_reproduce_small(run, tmp_path):
    code, out, _ = run("reproduce", "--variant", "paper", "--episodes", 200, "--seeds", 2, "--out", "figure")
    wrote = files("figure")
    assert code == 0 and "final_regret_mean" in Path("figure/table.md").read_text()
    for name in ("paper.png", "paper.pdf", "results.nc", "table.md", "claims.md", "guarantees.md"):
        assert name in wrote
    claims = Path("figure/claims.md").read_text()
    assert claims.count("non-private < JDP < LDP") >= 4, "the verdict on the order of regrets, by panel and epsilon"
    assert out.count("\n") <= 24 and "claims.md" in out and "table.md" in out
    assert "joint differential privacy" in Path("figure/guarantees.md").read_text()
    table = json.loads(
        run("reproduce", "--variant", "paper", "--episodes", 200, "--seeds", 2, "--out", "figure", "--json")[1]
    )["table"]
    uniform = 200 * uniform_regret(make("river_swim").mdp)
    assert all(row["uniform_regret"] == pytest.approx(uniform) and row["seeds"] == 2 for row in table)


def test_reproduce_of_one_episode(run):
    code, out, _ = run("reproduce", "--variant", "code", "--episodes", 1, "--seeds", 2, "--out", "figure")
    assert code == 0 and "claim" in out


def test_bad_reproduce_writes_nothing(run, tmp_path):
    check_refused(run("reproduce", "--variant", "papr", "--out", "f"), "Did you mean 'paper'?")
    check_refused(run("reproduce", "--episodes", 0, "--out", "f"), "episodes=0 >= 1")
    check_refused(run("reproduce", "--seeds", 0, "--out", "f"), "seeds=0 >= 1")
    check_refused(run("reproduce", "--variant", "--out", "f"), "--variant to name at least one", "Leave it out")
    Path("f").write_text("")
    check_refused(run("reproduce", "--out", "f/g"), "f is a file")
    assert files(tmp_path) == ["f"]
