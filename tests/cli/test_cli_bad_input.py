"""Bad input of `jaxprivrl sweep`: exit code 2, one sentence, and nothing is written."""

from pathlib import Path

import numpy as np
import pytest
from commands import SMALL, check_refused, files

BAD_FLAGS = {
    "epsilon zero": (("--epsilons", "0"), "epsilon=0.0 > 0. Use epsilon=inf"),
    "epsilon negative": (("--epsilons", "1", "-2"), "epsilon=-2.0 > 0"),
    "epsilon nan": (("--epsilons", "nan"), "epsilon=nan > 0"),
    "learner": (("--learner", "ucbvi"), "Unknown learner 'ucbvi'. Did you mean 'ucb_vi'? Available: "),
    "privatizer": (("--privatizer", "central_laplas"), "Did you mean 'central_laplace'? Available: "),
    "calibration": (("--calibration", "tite"), "Unknown calibration 'tite'. ", "Available: "),
    "postprocess": (("--postprocess", "klip"), "Did you mean 'clip'? Available: "),
    "target": (("--target", "puree"), "Unknown target 'puree'. ", "Available: "),
    "episodes": (("--episodes", "0"), "episodes=0 >= 1. Pass the number of users"),
    "episodes negative": (("--episodes", "-5"), "episodes=-5 >= 1"),
    "seeds": (("--seeds", "0"), "seeds=0 >= 1"),
    "families": (("--families", "4"), "families=4 to be 3"),
    "failure_prob": (("--failure-prob", "0"), "0 < failure_prob=0.0 < 1"),
    "dp_delta": (("--dp-delta", "2"), "0 < dp_delta=2.0 < 1"),
    "bonus": (("--bonus-scales", "-1"), "bonus_scale=-1.0"),
    "record": (("--record-every", "0"), "record_every=0 >= 1"),
    "printed at one": (("--episodes", "1", "--calibration", "printed"), "ln 1 = 0", "Use calibration='tight'"),
    "pooled": (("--homogeneous",), "stages of this MDP differ", "Drop homogeneous"),
    "horizon": (("--horizon", "3"), "disagree", "[2, 3]"),
    "neighbours": (("--neighbours", "swap"), "Unknown neighbours 'swap'", "replace"),
    "precision": (("--precision", "best"), "Unknown precision 'best'", "worst_case"),
    "metrics": (("--metrics", "planned"), "Did you mean 'planned_value'?"),
    "tuned": (("--tuned", "nowhere.toml"), "No file 'nowhere.toml'. Make one with 'jaxprivrl tune"),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_flags_write_nothing(run, mdp_file, tmp_path, case):
    flags, *words = BAD_FLAGS[case]
    check_refused(run("sweep", "--mdp", mdp_file, *SMALL, "--out", "runs/a", *flags), *words)
    assert files(tmp_path) == []


BAD_GRIDS = {
    "no values": (("bonus_scale",), "--grid bonus_scale to be name=value,value. Write --grid bonus_scale=0.01,0.1."),
    "empty": (("bonus_scale=",), "--grid bonus_scale= to be name=value,value"),
    "words": (("bonus_scale=a,b",), "Expected numbers in --grid bonus_scale=a,b"),
    "comma at the end": (("bonus_scale=1,",), "Expected numbers in --grid bonus_scale=1,"),
    "unknown": (("bonus=1",), "Unknown parameter of ucb_vi 'bonus'. Did you mean 'bonus_scale'?"),
    "no name": (("=1",), "Unknown parameter of ucb_vi ''", "Available: "),
    "of another learner": (("learning_rate=0.1",), "Unknown parameter of ucb_vi 'learning_rate'", "Available: "),
    "epsilon": (("epsilon=1",), "Unknown parameter of ucb_vi 'epsilon'"),
    "twice": (("error_scale=1", "error_scale=2"), "error_scale is given twice, by --grid error_scale=2 and before"),
    "repeated value": (("bonus_scale=1,1.0",), "bonus_scale=[1.0, 1.0] to be distinct", "Drop repeated values"),
    "negative": (("error_scale=1,-1",), "error_scale=-1.0 to be finite and >= 0"),
    "nan": (("bonus_scale=nan",), "bonus_scale=nan to be finite"),
    "infinite": (("bonus_scale=inf",), "bonus_scale=inf to be finite"),
    "two failure probabilities": (("failure_prob=0.1,0.2",), "one failure_prob", "Run one sweep for each"),
}


@pytest.mark.parametrize("case", BAD_GRIDS)
def test_bad_grids_write_nothing(run, mdp_file, tmp_path, case):
    items, *words = BAD_GRIDS[case]
    grids = [part for item in items for part in ("--grid", item)]
    check_refused(run("sweep", "--mdp", mdp_file, *SMALL, "--out", "runs/a", *grids), *words)
    assert files(tmp_path) == []


def test_a_parameter_is_given_by_grid_or_by_its_shorthand(run, mdp_file, tmp_path):
    sweep = ("sweep", "--mdp", mdp_file, *SMALL, "--learner", "ucb_po", "--out", "runs/a")
    for flag, name in (("--bonus-scales", "bonus_scale"), ("--learning-rates", "learning_rate"),
                       ("--error-scale", "error_scale"), ("--failure-prob", "failure_prob")):  # fmt: skip
        check_refused(run(*sweep, flag, 0.5, "--grid", f"{name}=0.25"), f"{name} is given twice")
    check_refused(run(*sweep, "--bonus-scales"), "bonus_scale=[] to be distinct and at least one")
    check_refused(run(*sweep, "--epsilons"), "epsilon=[] to be distinct and at least one")
    assert files(tmp_path) == []


# Times that do not increase cannot be written in these words; see the tests of schedules for those of a plugin.
BAD_RELEASES = {
    "unknown": ("sometimes", "Unknown schedule 'sometimes'.", "Available: "),
    "misspelt": ("eqal:3", "Unknown schedule 'eqal'. Did you mean 'equal'?"),
    "nothing": ("", "Unknown schedule ''"),
    "unknown parameter": ("geometric:frist=2", "Unknown parameter of geometric 'frist'. Did you mean 'first'?"),
    "empty parameters": ("equal:", "Nothing follows the colon of 'equal:'", "Write 'equal' for its defaults"),
    "empty parameters of every": ("every:", "Nothing follows the colon of 'every:'"),
    "empty value": ("equal:count=", "Expected count= to be a whole number"),
    "no parameters": ("every:3", "Schedule 'every' has no parameters; got '3'. Write 'every'."),
    "twice": ("equal:count=2,count=3", "gives count twice", "Drop one of them"),
    "no name": ("geometric:2,3", "'3' of geometric names no parameter"),
    "first after the last user": ("geometric:first=21", "first=21 <= 20, the number of users"),
    "first zero": ("geometric:first=0", "first=0.0 > 0"),
    "first nan": ("geometric:first=nan", "first=nan to be a number"),
    "growth one": ("geometric:growth=1", "growth=1.0 > 1. Pass a factor such as growth=1.1."),
    "growth below one": ("geometric:first=2,growth=0.5", "growth=0.5 > 1"),
    "growth infinite": ("geometric:growth=inf", "growth=inf > 1"),
    "growth in words": ("geometric:growth=fast", "Expected growth=fast to be a number"),
    "more releases than users": ("equal:21", "count=21 <= 20, the number of users. Pass fewer releases."),
    "no releases": ("equal:0", "count=0 >= 1"),
    "half a release": ("equal:2.5", "Expected count=2.5 to be a whole number"),
    "octaves of three": ("octaves:3", "per=3 to be a power of two"),
}


@pytest.mark.parametrize("case", BAD_RELEASES)
def test_bad_schedules_write_nothing(run, mdp_file, tmp_path, case):
    releases, *words = BAD_RELEASES[case]
    check_refused(run("sweep", "--mdp", mdp_file, *SMALL, "--out", "runs/a", "--releases", releases), *words)
    check_refused(run("account", "--epsilon", 1, "--horizon", 2, "--episodes", 20, "--releases", releases), *words)
    assert files(tmp_path) == []


def test_unknown_environment(run, tmp_path):
    check_refused(run("sweep", "--environment", "riverswim", *SMALL, "--out", "a"), "Did you mean 'river_swim'?")
    check_refused(run("sweep", "--environment", "river_swim:states=3", *SMALL), "Did you mean 'num_states'?")
    check_refused(run("sweep", "--environment", "river_swim:num_states=1", *SMALL), "num_states=1 >= 2")
    check_refused(run("sweep", "--environment", "deep_sea:3", "--mdp", "a.npz", *SMALL), "Pass one of them")
    check_refused(run("sweep", "--horizon", 0, *SMALL, "--out", "a"), "horizon=0 >= 1")
    assert files(tmp_path) == []


def row_off(p):
    p[1, 0, 1, 0] += 0.1


def row_negative(p):
    p[1, 0, 1] = [-0.5, 1.5]


BAD_MDPS = {
    "row": ({"transitions": row_off}, "transitions[h=1, s=0, a=1] sums to 1.1; expected 1"),
    "negative": ({"transitions": row_negative}, "transitions[h=1, s=0, a=1, s2=0] is -0.5", "expected a probability"),
    "cost": ({"costs": lambda c: np.put(c, 0, 1.5)}, "costs[h=0, s=0, a=0] is 1.5; expected 0 to 1"),
    "shapes": ({"costs": lambda c: np.zeros((2, 3, 2))}, "transitions has shape (2, 2, 2, 2)", "expected"),
    "start": ({"initial": lambda x: np.array(9)}, "initial=9 is not a state"),
}


@pytest.mark.parametrize("case", BAD_MDPS)
def test_bad_mdp_files_write_nothing(run, mdp_file, tmp_path, case):
    changes, *words = BAD_MDPS[case]
    with np.load(mdp_file) as file:
        arrays = {name: np.array(file[name]) for name in file.files}
    for name, change in changes.items():
        changed = change(arrays[name])
        arrays[name] = arrays[name] if changed is None else changed
    np.savez("bad.npz", **arrays)
    check_refused(run("sweep", "--mdp", "bad.npz", *SMALL, "--out", "runs/a"), *words)
    assert files(tmp_path) == ["bad.npz"]


def test_files_that_are_not_mdps(run, tmp_path):
    Path("a.npz").write_text("not an archive")
    check_refused(run("sweep", "--mdp", "a.npz", *SMALL, "--out", "runs/a"), "'a.npz' is not an .npz file", "savez")
    check_refused(run("sweep", "--mdp", "b.npz", *SMALL, "--out", "runs/a"), "No file 'b.npz'", "Pass an .npz")
    assert files(tmp_path) == ["a.npz"]
