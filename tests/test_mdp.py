"""MDPs: planning against brute force, values, occupancy and exact regret in float64, and refusals of bad arrays."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pieces
import pytest
import reference

from jaxprivrl import mdp as mdp_lib

HSA = (4, 3, 2)


def random_policy(rng, H, S, A):
    return rng.dirichlet(np.ones(A), (H, S))


def host(mdp):
    """costs, transitions and initial in float64."""
    return tuple(np.asarray(x, np.float64) for x in (mdp.costs, mdp.transitions, mdp.initial))


@pytest.fixture(scope="module")
def mdp():
    return pieces.random_mdp(3, HSA)


@pytest.mark.parametrize("seed", range(3))
def test_backward_induction_equals_brute_force(seed):
    mdp = pieces.random_mdp(seed, (2, 2, 2))
    c, p, _ = host(mdp)
    best = np.full(2, np.inf)
    for actions in itertools.product(range(2), repeat=4):
        policy = np.eye(2)[np.reshape(actions, (2, 2))]
        best = np.minimum(best, reference.policy_values(p, c, policy)[1][0])
    solution = mdp_lib.solve(mdp)
    np.testing.assert_allclose(solution.v[0], best, atol=1e-12)
    np.testing.assert_allclose(solution.v[0], reference.brute_force_optimal_value(p, c, 2), atol=1e-12)
    assert np.all(solution.gaps >= 0) and np.all(solution.gaps.min(-1) == 0)


def test_solution_equals_the_reference(mdp):
    c, p, _ = host(mdp)
    q, v = reference.optimal_values(p, c, HSA[0])
    solution = mdp_lib.solve(mdp)
    np.testing.assert_allclose(solution.q, q, atol=1e-12)
    np.testing.assert_allclose(solution.v, v[:-1], atol=1e-12)
    np.testing.assert_allclose(solution.gaps, q - v[:-1, :, None], atol=1e-12)


def test_policy_value_occupancy_and_regret(mdp):
    rng = np.random.default_rng(0)
    c, p, rho = host(mdp)
    gaps = mdp_lib.prepare(mdp).gaps
    for _ in range(4):
        policy = random_policy(rng, *HSA)
        pi = jnp.asarray(policy, jnp.float32)
        value = reference.policy_values(p, c, policy)[1]
        np.testing.assert_allclose(mdp_lib.policy_value(mdp, pi), value[:-1], rtol=1e-5)
        d = np.asarray(mdp_lib.occupancy(mdp, pi))
        assert np.all(d >= 0)
        np.testing.assert_allclose(d.sum((1, 2)), 1.0, atol=1e-6)
        np.testing.assert_allclose(d[0].sum(-1), rho, atol=1e-6)
        np.testing.assert_allclose(np.sum(d * c), rho @ value[0], rtol=1e-6)
        difference = rho @ (value[0] - mdp_lib.solve(mdp).v[0])
        regret = float(mdp_lib.expected_regret(mdp, gaps, pi))
        assert regret == pytest.approx(difference, rel=1e-6)
        assert difference == pytest.approx(reference.regret(p, c, rho, policy), rel=1e-9)


def test_regret_of_the_best_policy_is_zero(mdp):
    best = np.eye(HSA[2])[mdp_lib.solve(mdp).q.argmin(-1)]
    assert float(mdp_lib.expected_regret(mdp, mdp_lib.prepare(mdp).gaps, jnp.asarray(best, jnp.float32))) == 0.0


def test_a_tiny_regret_survives_float32(mdp):
    """A policy that errs with probability 1e-7: a difference of float32 values would be noise."""
    best = np.eye(HSA[2])[mdp_lib.solve(mdp).q.argmin(-1)]
    policy = (1 - 1e-7) * best + 1e-7 * (1 - best)
    c, p, rho = host(mdp)
    want = reference.regret(p, c, rho, policy)
    got = float(mdp_lib.expected_regret(mdp, mdp_lib.prepare(mdp).gaps, jnp.asarray(policy, jnp.float32)))
    assert 0 < want < 1e-6
    assert got == pytest.approx(want, rel=1e-4)


def test_stage_axis_of_length_one_is_repeated():
    costs, rows = np.full((1, 2, 2), 0.5), np.full((1, 2, 2, 2), 0.5)
    mdp = mdp_lib.make(costs, rows, 1, horizon=3)
    assert mdp.shape == (3, 2, 2) and mdp_lib.is_homogeneous(mdp)
    np.testing.assert_array_equal(mdp.initial, [0.0, 1.0])
    mixed = mdp_lib.make(np.linspace(0, 1, 12).reshape(3, 2, 2), rows)
    assert mixed.shape == (3, 2, 2) and mixed.transitions.shape == (3, 2, 2, 2) and not mdp_lib.is_homogeneous(mixed)
    assert mdp_lib.make(costs, rows, [0.25, 0.75], horizon=1).shape == (1, 2, 2)


def test_make_copies_its_arguments():
    costs, rows = np.full((1, 2, 2), 0.5), np.full((1, 2, 2, 2), 0.5)
    mdp = mdp_lib.make(costs, rows, horizon=2)
    costs[:], rows[:] = 0.0, 0.0
    assert float(mdp.costs.min()) == 0.5 and float(mdp.transitions.min()) == 0.5


@dataclasses.dataclass
class Arrays:
    """Arguments of a valid `make`, to be spoilt."""

    costs: np.ndarray = dataclasses.field(default_factory=lambda: np.full((2, 3, 2), 0.5))
    transitions: np.ndarray = dataclasses.field(default_factory=lambda: np.full((2, 3, 2, 3), 1 / 3))
    initial: object = 0
    horizon: object = None


def spoil(name, index, value):
    def change(a):
        getattr(a, name)[index] = value

    return change


def assign(**fields):
    return lambda a: [setattr(a, k, v) for k, v in fields.items()]


BAD = {
    "row sum": (spoil("transitions", (1, 2, 0, 1), 0.0), r"transitions\[h=1, s=2, a=0\] sums to 0\.66.*expected 1"),
    "negative probability": (
        spoil("transitions", (1, 0, 1), [1.5, -0.5, 0.0]),
        r"transitions\[h=1, s=0, a=1, s2=1\] is -0\.5; expected a probability >= 0",
    ),
    "cost above one": (spoil("costs", (0, 2, 1), 1.5), r"costs\[h=0, s=2, a=1\] is 1\.5; expected 0 to 1"),
    "cost below zero": (spoil("costs", (1, 0, 0), -0.1), r"costs\[h=1, s=0, a=0\] is -0\.1; expected 0 to 1"),
    "nan cost": (spoil("costs", (1, 0, 0), np.nan), r"costs holds NaN or infinity at \[1, 0, 0\]"),
    "infinite row": (spoil("transitions", (0, 0, 0, 0), np.inf), r"transitions holds NaN or infinity"),
    "costs without stages": (
        assign(costs=np.full((3, 2), 0.5)),
        r"costs has shape \(3, 2\); expected \[H or 1, S, A\]",
    ),
    "next states": (
        assign(transitions=np.full((2, 3, 2, 4), 0.25)),
        r"transitions has shape \(2, 3, 2, 4\); expected \[H or 1, 3, 2, 3\]",
    ),
    "actions": (assign(transitions=np.full((2, 3, 3, 3), 1 / 3)), r"expected \[H or 1, 3, 2, 3\]"),
    "rank": (assign(transitions=np.full((3, 2, 3), 1 / 3)), r"transitions has shape \(3, 2, 3\)"),
    "stages": (assign(transitions=np.full((3, 3, 2, 3), 1 / 3)), r"disagree: \[2, 3\]"),
    "horizon disagrees": (assign(horizon=4), r"disagree: \[2, 4\]"),
    "horizon zero": (assign(horizon=0), r"Expected horizon=0 >= 1"),
    "horizon fraction": (assign(horizon=2.5), r"Expected horizon=2\.5 >= 1"),
    "no horizon": (
        assign(costs=np.full((1, 3, 2), 0.5), transitions=np.full((1, 3, 2, 3), 1 / 3)),
        r"no horizon is given. Pass horizon=H",
    ),
    "no states": (assign(costs=np.zeros((2, 0, 2)), transitions=np.zeros((2, 0, 2, 0))), r"at least one stage, state"),
    "start outside": (assign(initial=3), r"initial=3 is not a state; expected a whole number from 0 to 2"),
    "start negative": (assign(initial=-1), r"initial=-1 is not a state"),
    "start fraction": (assign(initial=0.5), r"initial=0\.5 is not a state"),
    "start shape": (assign(initial=[0.5, 0.5]), r"initial has shape \(2,\); expected \[3\]"),
    "start sum": (assign(initial=[0.5, 0.5, 0.5]), r"initial sums to 1\.5"),
    "start sign": (assign(initial=[1.5, -0.5, 0.0]), r"least entry -0\.5; expected a distribution"),
    "start nan": (assign(initial=[np.nan, 0.5, 0.5]), r"initial holds NaN or infinity"),
    "start scalar nan": (assign(initial=np.nan), r"initial=nan is not a state"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused(case):
    change, message = BAD[case]
    a = Arrays()
    change(a)
    with pytest.raises(ValueError, match=message):
        mdp_lib.make(a.costs, a.transitions, a.initial, horizon=a.horizon)


def test_good_arrays_are_accepted():
    a = Arrays()
    assert mdp_lib.make(a.costs, a.transitions, a.initial).shape == (2, 3, 2)
