"""Environments: RiverSwim's known numbers, random MDPs, mirroring, and MDP files, good and bad."""

import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxprivrl import environments
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.numerics import random

LEFT, RIGHT = 0, 1


def constant_policy(mdp, weights):
    return jnp.broadcast_to(jnp.asarray(weights, jnp.float32)[None, None, :], mdp.shape)


def regret_of(mdp, weights):
    return float(mdp_lib.expected_regret(mdp, mdp_lib.prepare(mdp).gaps, constant_policy(mdp, weights)))


def test_river_swim_numbers():
    mdp = environments.river_swim()
    assert mdp.shape == (20, 6, 2) and mdp_lib.is_homogeneous(mdp) and not bool(mdp.bernoulli)
    assert mdp_lib.solve(mdp).v[0, 0] == pytest.approx(20 - 3.3973, abs=5e-5)
    right, left, uniform = (regret_of(mdp, w) for w in ([0, 1], [1, 0], [0.5, 0.5]))
    assert right == pytest.approx(0.0007, abs=1e-4) and 2e4 * right == pytest.approx(13, abs=0.5)
    assert left == pytest.approx(3.3973 - 0.1, abs=5e-5) and 2e4 * left == pytest.approx(66_000, rel=0.01)
    assert uniform == pytest.approx(3.3973 - 0.0438, abs=1e-4)


def test_river_swim_transitions():
    mdp = environments.river_swim(horizon=3, num_states=4, bernoulli=True)
    assert mdp.shape == (3, 4, 2) and bool(mdp.bernoulli)
    P, c = np.asarray(mdp.transitions[0]), np.asarray(mdp.costs[0])
    np.testing.assert_allclose(P[:, LEFT], np.eye(4)[[0, 0, 1, 2]])
    np.testing.assert_allclose(
        P[:, RIGHT], [[0.4, 0.6, 0, 0], [0.05, 0.6, 0.35, 0], [0, 0.05, 0.6, 0.35], [0, 0, 0.4, 0.6]], rtol=1e-6
    )
    rewards = np.zeros((4, 2))
    rewards[0, LEFT], rewards[3, RIGHT] = 0.005, 1.0
    np.testing.assert_allclose(c, 1 - rewards, atol=1e-7)
    np.testing.assert_array_equal(mdp.initial, [1, 0, 0, 0])


def test_river_swim_needs_two_banks():
    with pytest.raises(ValueError, match=r"Expected num_states=1 >= 2. RiverSwim needs"):
        environments.river_swim(num_states=1)


@pytest.mark.parametrize("homogeneous", [False, True])
def test_random_mdp_is_valid(homogeneous):
    mdp = environments.random_mdp(random.key(0), 4, 3, 2, homogeneous=homogeneous, bernoulli=True)
    mdp_lib.validate(mdp)
    assert mdp.shape == (4, 3, 2) and bool(mdp.bernoulli) and mdp_lib.is_homogeneous(mdp) == homogeneous
    other = environments.random_mdp(random.key(1), 4, 3, 2)
    assert not np.array_equal(mdp.costs, other.costs)
    again = environments.random_mdp(random.key(0), 4, 3, 2, homogeneous=homogeneous)
    np.testing.assert_array_equal(mdp.transitions, again.transitions)


def test_concentration_sharpens_rows():
    spread, sharp = (
        np.asarray(environments.random_mdp(random.key(0), 4, 3, 2, concentration=c).transitions).max(-1).mean()
        for c in (100.0, 0.01)
    )
    assert spread < 0.45 and sharp > 0.9


@pytest.mark.parametrize("sizes", [(1, 3, 2), (3, 1, 2), (3, 2, 1)])
def test_random_mdp_of_least_sizes(sizes):
    mdp = environments.random_mdp(random.key(0), *sizes)
    mdp_lib.validate(mdp)
    assert mdp.shape == sizes


def test_mirror_is_an_involution_and_keeps_values():
    mdp = environments.random_mdp(random.key(5), 3, 4, 2)
    other = environments.mirror(mdp)
    mdp_lib.validate(other)
    for x, y in zip(mdp, environments.mirror(other), strict=True):
        np.testing.assert_array_equal(x, y)
    assert not np.array_equal(mdp.costs, other.costs)
    np.testing.assert_allclose(mdp_lib.solve(other).v, mdp_lib.solve(mdp).v[:, ::-1], atol=1e-12)
    swum = environments.mirror(environments.river_swim())
    assert regret_of(swum, [1, 0]) == pytest.approx(0.0007, abs=1e-4)


def valid(H=2):
    rng = np.random.default_rng(0)
    return {
        "costs": rng.uniform(size=(H, 3, 2)),
        "transitions": rng.dirichlet(np.ones(3), (H, 3, 2)),
        "initial": np.array([0.2, 0.3, 0.5]),
    }


@pytest.fixture
def write(tmp_path):
    def save(**arrays):
        path = tmp_path / "mdp.npz"
        np.savez(path, **arrays)
        return path

    return save


GOOD = {
    "stage-dependent": ({}, {}, 2),
    "horizon stored": ({"horizon": 2}, {}, 2),
    "horizon agrees": ({"horizon": 2}, {"horizon": 2}, 2),
    "horizon passed": ({}, {"horizon": 2}, 2),
    "int start": ({"initial": 1}, {}, 2),
    "costs shared by stages": ({"costs": np.full((1, 3, 2), 0.25)}, {}, 2),
    "whole numbers": ({"costs": np.ones((2, 3, 2), int)}, {}, 2),
    "float32": ({"costs": np.full((2, 3, 2), 0.25, np.float32)}, {}, 2),
    "another array": ({"note": np.arange(3)}, {}, 2),
}


@pytest.mark.parametrize("case", GOOD)
def test_files_of_every_documented_form(write, case):
    extra, arguments, H = GOOD[case]
    arrays = valid() | extra
    mdp = environments.from_file(write(**arrays), **arguments)
    assert mdp.shape == (H, 3, 2) and not bool(mdp.bernoulli)
    start = np.eye(3)[1] if case == "int start" else arrays["initial"]
    np.testing.assert_allclose(mdp.initial, start, rtol=1e-6)
    np.testing.assert_allclose(mdp.costs, np.broadcast_to(arrays["costs"], (H, 3, 2)), rtol=1e-6)
    np.testing.assert_allclose(mdp.transitions, arrays["transitions"], rtol=1e-6)


@pytest.mark.parametrize("stored", [True, False])
def test_homogeneous_files_need_a_horizon(write, stored):
    arrays = valid(1) | ({"horizon": np.array(5)} if stored else {})
    mdp = environments.from_file(str(write(**arrays)), horizon=None if stored else 5, bernoulli=True)
    assert mdp.shape == (5, 3, 2) and bool(mdp.bernoulli) and mdp_lib.is_homogeneous(mdp)
    c, p = np.asarray(mdp.costs, np.float64), np.asarray(mdp.transitions, np.float64)
    v = reference.optimal_values(arrays["transitions"], arrays["costs"], 5)[1]
    np.testing.assert_allclose(mdp_lib.solve(mdp).v, v[:-1], atol=1e-6)
    assert c.shape[0] == p.shape[0] == 5


def scaled_row():
    p = valid()["transitions"]
    p[1, 2, 0] *= 0.9
    return p


def negative_row():
    p = valid()["transitions"]
    p[0, 1, 1] = [1.25, -0.25, 0.0]
    return p


def one_cost(value):
    c = valid()["costs"]
    c[1, 0, 1] = value
    return c


BAD = {
    "row sum": ({"transitions": scaled_row()}, {}, r"transitions\[h=1, s=2, a=0\] sums to 0\.9; expected 1"),
    "negative": ({"transitions": negative_row()}, {}, r"transitions\[h=0, s=1, a=1, s2=1\] is -0\.25; expected"),
    "cost above": ({"costs": one_cost(1.01)}, {}, r"costs\[h=1, s=0, a=1\] is 1\.01; expected 0 to 1"),
    "cost below": ({"costs": one_cost(-0.5)}, {}, r"costs\[h=1, s=0, a=1\] is -0\.5; expected 0 to 1"),
    "cost nan": ({"costs": one_cost(np.nan)}, {}, r"costs holds NaN or infinity at \[1, 0, 1\]"),
    "states disagree": ({"transitions": np.full((2, 4, 2, 4), 0.25)}, {}, r"expected \[H or 1, 3, 2, 3\]"),
    "stages disagree": ({"transitions": np.full((3, 3, 2, 3), 1 / 3)}, {}, r"disagree: \[2, 3\]"),
    "flat costs": ({"costs": np.full((3, 2), 0.5)}, {}, r"costs has shape \(3, 2\); expected \[H or 1, S, A\]"),
    "start shape": ({"initial": np.array([0.5, 0.5])}, {}, r"initial has shape \(2,\); expected \[3\]"),
    "start sum": ({"initial": np.array([0.5, 0.2, 0.2])}, {}, r"initial sums to 0\.9"),
    "start outside": ({"initial": 3}, {}, r"initial=3 is not a state"),
    "stored horizon": ({"horizon": 3}, {}, r"disagree: \[2, 3\]"),
    "passed horizon": ({}, {"horizon": 3}, r"disagree: \[2, 3\]"),
    "two horizons": ({"horizon": 2}, {"horizon": 3}, r"Horizon 3 disagrees with horizon 2 in .* Drop one of them"),
    "horizon zero": ({"horizon": 0}, {}, r"Expected horizon=0 >= 1"),
    "horizon fraction": ({"horizon": 2.5}, {}, r"horizon=?.*2\.5"),
    "horizon array": ({"horizon": np.array([2, 2])}, {}, r"horizon.*\[2, 2\]|horizon.*shape \(2,\)"),
    "horizon text": ({"horizon": np.array("two")}, {}, r"horizon.*(two|dtype)"),
    "text": ({"costs": np.full((2, 3, 2), "a")}, {}, r"'costs' in .* has dtype <U1; expected numbers"),
    "complex": ({"initial": np.ones(3, complex) / 3}, {}, r"'initial' in .* has dtype complex128; expected numbers"),
    "objects": ({"costs": np.array([[{}]], object)}, {}, r"holds Python objects; expected plain number arrays"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(write, case):
    extra, arguments, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        environments.from_file(write(**valid() | extra), **arguments)


@pytest.mark.parametrize("missing", ["costs", "transitions", "initial"])
def test_missing_arrays_are_named(write, missing):
    arrays = valid()
    del arrays[missing]
    with pytest.raises(ValueError, match=rf"has no array '{missing}'; it holds .* Add it"):
        environments.from_file(write(**arrays))


def test_homogeneous_file_without_horizon(write):
    with pytest.raises(ValueError, match=r"no horizon is given\. Pass horizon=H"):
        environments.from_file(write(**valid(1)))


def test_files_that_are_not_npz(tmp_path):
    text, single, empty, cut = (tmp_path / name for name in ("a.txt", "b.npy", "c.npz", "d.npz"))
    text.write_text("costs: 1\n")
    np.save(single, np.ones(3))
    empty.write_bytes(b"")
    np.savez(cut, **valid())
    cut.write_bytes(cut.read_bytes()[:200])
    for path in (text, empty, cut):
        with pytest.raises(ValueError, match=r"is not an \.npz file\. Write one with numpy\.savez"):
            environments.from_file(path)
    with pytest.raises(ValueError, match=r"holds one array, not an \.npz"):
        environments.from_file(single)
    with pytest.raises(ValueError, match=r"No file .*nowhere\.npz'\. Pass an \.npz"):
        environments.from_file(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match=r"No file"):
        environments.from_file(tmp_path)


def test_a_file_cut_inside_an_array_is_refused(tmp_path):
    """The directory of the archive is whole, the bytes of one array are not."""
    path = tmp_path / "mdp.npz"
    np.savez(path, **valid())
    data = bytearray(path.read_bytes())
    data[200:240] = bytes(40)
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"mdp\.npz"):
        environments.from_file(path)


READY = [environment for environment in environments.ENVIRONMENTS.values() if not environment.required]


@pytest.mark.parametrize("environment", READY, ids=lambda environment: environment.name)
def test_registry_builds_valid_mdps(environment):
    assert environments.ENVIRONMENTS[environment.name] is environment and environment.summary.endswith(".")
    built = environment.make(bernoulli=True)
    H, S, A = built.shape
    if H * S * A * S > 10**8:
        built = environment.make(horizon=2, bernoulli=True)  # H copies of a large table are not needed here
    mdp_lib.validate(built.mdp)
    assert built.mdp.shape == built.host.shape == built.shape and bool(built.mdp.bernoulli)
    for device, host in zip(built.mdp[:3], built.host[:3], strict=True):
        np.testing.assert_allclose(np.asarray(device, np.float64), host, atol=1e-6)


@pytest.mark.parametrize("environment", READY, ids=lambda environment: environment.name)
def test_parameters_are_declared_in_full(environment):
    for parameter in environment.parameters:
        assert parameter.type in (int, float, bool, str) and parameter.meaning and not parameter.meaning.endswith(".")


def test_river_swim_is_the_registered_one():
    named = environments.make("river_swim:num_states=8", horizon=7, bernoulli=True).mdp
    for x, y in zip(named, environments.river_swim(7, 8, bernoulli=True), strict=True):
        np.testing.assert_array_equal(x, y)


def test_mirror_of_a_name_is_the_mirror_of_its_mdp():
    for text in ("river_swim:num_states=8", "lock:slip=0.1,seed=3", "random:seed=2", "grid_world:walls=1.1/2.2"):
        plain, image = environments.make(text), environments.make(f"mirror:{text}")
        for x, y in zip(image.mdp, environments.mirror(plain.mdp), strict=True):
            np.testing.assert_array_equal(x, y)
        for name in ("optimal_value", "uniform_regret", "possible_transitions", "native_optimum"):
            assert environments.facts(image)[name] == pytest.approx(environments.facts(plain)[name], rel=1e-12)
        assert image.ends == tuple(plain.shape[1] - 1 - end for end in plain.ends)
        if plain.support is not None:
            np.testing.assert_array_equal(image.support, plain.support[:, ::-1, ::-1, ::-1])
        if plain.grid is not None:
            np.testing.assert_array_equal(image.grid.cells, plain.grid.cells[::-1])


def test_a_file_may_declare_support_picture_and_units(write):
    arrays = valid()
    arrays["transitions"][:, 0, 0] = [0.5, 0.5, 0.0]
    extras = {
        "support": arrays["transitions"] > 0,
        "cells": np.array([[0, 0], [1, 2], [-1, -1]]),
        "native": [-4.0, 1.0],
    }
    built = environments.make(f"file:{write(**arrays, **extras)}")
    assert built.support.sum() == 2 * 3 * 2 * 3 - 2 and environments.facts(built)["possible_transitions"] == 17
    assert built.grid[:2] == (2, 3) and built.grid.cells.tolist() == [0, 5, -1]
    assert built.native == (-4.0, 1.0, 2) and built.native.total(0.5) == 0.0 and built.native.loss(0.5) == 2.0
    plain = environments.make(f"file:path={write(**arrays)}")
    assert plain.support is None and plain.grid is None and plain.native == (1.0, 0.0, 2)
    np.testing.assert_array_equal(plain.mdp.costs, built.mdp.costs)


WRONG_EXTRAS = {
    "support": (np.zeros((1, 3, 2, 3), bool), r"expected 0 outside the support\. Widen"),
    "support shape": (np.ones((3, 2, 3), bool), r"support in .* has shape \(3, 2, 3\); expected \[2 or 1, 3, 2, 3\]"),
    "cells": (np.zeros((2, 2), int), r"cells in .* has shape \(2, 2\); expected whole numbers \[3, 2\]"),
    "native": (np.zeros(2), r"native in .* is \[0\.0, 0\.0\]; expected \[scale, offset\]"),
}


@pytest.mark.parametrize("case", WRONG_EXTRAS)
def test_wrong_extras_of_files_are_refused(write, case):
    value, message = WRONG_EXTRAS[case]
    with pytest.raises(ValueError, match=message):
        environments.make(f"file:{write(**valid(), **{case.split()[0]: value})}")


WRONG = {
    "deep_se": r"Unknown environment 'deep_se'\. Did you mean 'deep_sea'\?",
    "deep_sea:size=0": r"Expected size=0 >= 1\. The sea needs a cell",
    "deep_sea:siz=3": r"Unknown parameter of deep_sea 'siz'\. Did you mean 'size'\? Available: size",
    "river_swim:num_states=1": r"Expected num_states=1 >= 2\. RiverSwim needs",
    "garnet:states=3,branching=4": r"Expected branching=4 <= states=3\. Pass fewer",
    "grid_world:goal=5.0": r"Expected goal=5\.0 inside 5 x 5 cells",
    "grid_world:goal=here": r"Expected goal=here to be row\.column\. Pass one such as goal=0\.4",
    "grid_world:start=4.4": r"Expected start=4\.4 to differ from the goal",
    "grid_world:walls=0.0": r"Expected start=0\.0 to be free; it is a wall",
    "four_rooms:slip=1.5": r"Expected 0 <= slip=1\.5 <= 1\. Pass a probability",
    "queue:slow=0.9": r"Expected fast=0\.7 >= slow=0\.9\. Swap",
    "random:concentration=0": r"Expected concentration=0\.0 > 0 and finite",
    "mirror": r"mirror needs of: an environment .* Pass of=",
    "mirror:lok": r"Unknown environment 'lok'\. Did you mean 'lock'",
    "file:nowhere.npz": r"No file 'nowhere\.npz'",
    "gym:Taxi-v3:slippery=true": r"'gym:Taxi-v3' has no parameters; got 'slippery=true'",
    "gym:FrozenLake-v1:size=6": r"Expected size=6 to be one of 4, 8\. Pass size=",
    "gym:FrozenLak-v1": r"gymnasium has no environment 'FrozenLak-v1'\. Pass 'FrozenLake-v1'",
    "gym:CartPole-v1": r"'CartPole-v1' has no transition table; expected a tabular environment\. Pass gym:",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_names_and_parameters_are_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=WRONG[text]) as caught:
        environments.make(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("horizon", [0, -1, 2.5])
def test_wrong_horizons_are_refused(horizon):
    with pytest.raises(ValueError, match=rf"Expected horizon={horizon} >= 1"):
        environments.make("river_swim", horizon)


@pytest.mark.parametrize("text", ["deep_sea:size=4", "lock:length=4"])
def test_a_horizon_too_short_for_any_prize_is_refused(text):
    with pytest.raises(ValueError, match=r"Expected horizon=3 >= (size|length)=4"):
        environments.make(text, 3)
