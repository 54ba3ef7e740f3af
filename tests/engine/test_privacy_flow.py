"""What flows where: counts reach a learner only through a Release, and no key is used twice."""

import inspect
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest

from jaxprivrl import mdp
from jaxprivrl.engine import episodes
from jaxprivrl.engine import run as engine
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.learners import LEARNERS, Steps
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.privatizers import PRIVATIZERS, additive, base
from jaxprivrl.privatizers.base import Clock, Parameters, Release, State, Totals
from jaxprivrl.problem import Shape

EPISODES = 3
SMALL = mdp.make(np.array([[[0.2, 0.8], [0.5, 0.1]]]), np.full((1, 2, 2, 2), 0.5), horizon=2)
# A learner and a privatizer never see each other's keys or state, so each meets one of the other kind.
PAIRS = [*((learner, "central_laplace") for learner in LEARNERS), *(("ucb_vi", name) for name in PRIVATIZERS)]
PAIRS = list(dict.fromkeys(PAIRS))
PRIVATE = [name for name, p in PRIVATIZERS.items() if p.private]


def plan_of(learner, privatizer, epsilon=100.0):
    """Plan of one run, with noise and bonus small enough for counts to matter."""
    grid = {"bonus_scale": 0.01, "learning_rate": 1.0}
    declared = {p.name for p in LEARNERS[learner].parameters}
    spec = SweepSpec(
        environment="small", learner=learner, privatizer=privatizer, epsilons=(epsilon,), seeds=1, episodes=EPISODES,
        grid={name: value for name, value in grid.items() if name in declared}, postprocess="none",
    )  # fmt: skip
    return resolve(spec, SMALL)


# Nothing but the Release.


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_takes_a_release_and_nothing_else(name):
    """By types: (shape, hyper) to build it, (key, state, release) to step, nothing to start."""
    assert list(inspect.signature(LEARNERS[name].make).parameters) == ["shape", "hyper"]
    plan = plan_of(name, "exact")
    made = LEARNERS[name].make(plan.job.program.shape, pieces.cell_of(plan).hyper)
    assert not inspect.signature(made.init).parameters
    names = inspect.signature(made.step).parameters
    assert len(names) == 3
    hints = typing.get_type_hints(made.step)
    assert hints[list(names)[-1]] is Release
    assert not {Counts, Totals, State} & set(hints.values())


def test_the_protocol_says_so():
    arguments, _ = typing.get_args(typing.get_type_hints(Steps)["step"])
    assert arguments[-1] is Release and len(arguments) == 3
    assert typing.get_args(typing.get_type_hints(Steps)["init"])[0] == []


@pytest.mark.parametrize("learner, privatizer", PAIRS)
def test_raw_counts_do_not_reach_the_learner(learner, privatizer):
    """Totals are replaced by other numbers under a fixed release: policy and learner state stay, bit for bit.

    Control: the next release, which is made from the totals, moves with them.
    """
    plan = plan_of(learner, privatizer)
    cell, program = pieces.cell_of(plan), plan.job.program

    @pieces.jit
    def step(keys, state, cell, shared):
        parts = engine.parts(program, cell, shared)
        view = parts.agent.runtime.view(parts.agent.parameters, state.released, state.clock)
        policy = parts.learner.step(keys.learner, state.learner, view)[1].policy
        after, (regret,) = episodes.step(keys, state, parts)
        return after, policy, regret

    state, _ = pieces.initial(plan, cell)
    keys = pieces.keys_of(0, EPISODES)
    for k in range(EPISODES):
        now = jax.tree.map(lambda x, k=k: x[k], keys)
        spoilt = state._replace(cell=jax.tree.map(lambda x: x + jnp.asarray(7, x.dtype), state.cell))
        after, policy, regret = step(now, state, cell, plan.job.shared)
        after_spoilt, policy_spoilt, regret_spoilt = step(now, spoilt, cell, plan.job.shared)
        np.testing.assert_array_equal(policy, policy_spoilt)
        np.testing.assert_array_equal(regret, regret_spoilt)
        jax.tree.map(np.testing.assert_array_equal, after.learner, after_spoilt.learner)
        jax.tree.map(np.testing.assert_array_equal, after.told, after_spoilt.told)
        assert np.all(np.asarray(after_spoilt.released.visits) != np.asarray(after.released.visits))
        state = after


@pytest.mark.parametrize("name", PRIVATE)
def test_a_release_holds_no_raw_counts(name):
    """Noise of every released cell is drawn; the only exact numbers of a Release are public ones."""
    plan = plan_of("ucb_vi", name, epsilon=0.5)
    cell, shared = pieces.cell_of(plan), plan.job.shared
    step = pieces.privatizer_step(plan.job.program)
    draws = 40 if PRIVATIZERS[name].report.family else 2  # such a user reports one of six parts of an episode
    keys = pieces.keys_of(1, draws).noise
    state = pieces.initial(plan, cell)[0]._replace(learner=())
    counts = pieces.one_episode(plan)
    one, *others = (step(keys[i], cell, shared, state, counts)[1] for i in range(draws))
    for family in range(3):
        x, true = np.asarray(one.counts[family]), np.asarray(counts[family])
        assert any(np.any(np.asarray(two.counts[family]) != x) for two in others)
        assert any(np.any(np.asarray(two.counts[family]) != true) for two in others)
    two = others[-1]
    jax.tree.map(np.testing.assert_array_equal, one._replace(counts=()), two._replace(counts=()))


# No key twice.


@pytest.mark.parametrize("learner, privatizer", PAIRS)
def test_no_key_is_used_twice(learner, privatizer):
    plan = plan_of(learner, privatizer)
    run = pieces.jit(lambda key: pieces.simulate(key, plan))
    with jax.debug_key_reuse(True):
        assert run(random.key(0)).shape == (EPISODES,)


@pytest.mark.parametrize("first, second", [("noise", "environment"), ("noise", "learner"), ("environment", "learner")])
def test_a_key_used_for_two_things_is_noticed(monkeypatch, first, second):
    plan, honest = plan_of("ucb_vi", "central_laplace"), episodes.step

    def step(keys, *rest, **settings):
        return honest(keys._replace(**{second: getattr(keys, first)}), *rest, **settings)

    monkeypatch.setattr(episodes, "step", step)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        pieces.simulate(random.key(0), plan)


def test_a_key_used_in_every_episode_is_noticed(monkeypatch):
    plan = plan_of("ucb_vi", "central_laplace")
    honest, fixed = episodes.step, random.key(1)
    monkeypatch.setattr(
        episodes, "step", lambda keys, *rest, **settings: honest(keys._replace(noise=fixed), *rest, **settings)
    )
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        pieces.simulate(random.key(0), plan)


# Sums before the noise


def tree_moves(values):
    """L1 distance, over all nodes of a binary tree, of what two streams of running sums f64[K, cells] put in them."""
    moved = np.concatenate([np.zeros_like(values[0][:1]), values[1] - values[0]])
    K = len(moved) - 1
    return sum(np.abs(np.diff(moved[:: 2**j], axis=0)).sum() for j in range(K.bit_length()))


def test_cost_sums_are_exact_before_they_get_noise():
    """One user replaced moves the nodes of a tree by what accounting says, at costs that float32 sums would round.

    The control is the sum rounded to float32: its error changes at every later episode, and all nodes move.
    """
    K = 200_000
    rng = np.random.default_rng(3)
    costs, actions = rng.uniform(0.8, 1.0, K).astype(np.float32), rng.integers(0, 2, K)
    costs[0] = 1 - 2**-8.5

    def run(first_action):
        played = jnp.asarray(np.append(first_action, actions[1:]))

        def body(totals, now):
            a, c = now
            visits = (jnp.arange(2) == a).astype(jnp.float32)[None, None]
            totals = base.accumulate(totals, base.clip_costs(Counts(visits, c * visits, visits[..., None])))
            high, low = base.exact_parts(totals)
            return totals, (high.costs[0, 0], low.costs[0, 0])

        start = base.zero_totals(Counts(jnp.zeros((1, 1, 2)), jnp.zeros((1, 1, 2)), jnp.zeros((1, 1, 2, 1))))
        return [np.asarray(x, np.float64) for x in jax.jit(lambda: jax.lax.scan(body, start, (played, costs))[1])()]

    runs = [run(a) for a in (0, 1)]
    accounted = 2 * K.bit_length()  # two cells, one node on each level, by at most 1
    assert tree_moves([high + low for high, low in runs]) <= accounted
    assert tree_moves([high for high, _ in runs]) > 2 * accounted


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 2**24 + 1, 2**31 - 1])
def test_large_counts_are_exact_before_they_get_noise(n):
    one = jnp.full((1, 1, 1), n, jnp.int32)
    high, low = base.exact_parts(Totals(one, jnp.zeros((1, 1, 1)), jnp.zeros((1, 1, 1)), one[..., None]))
    for a, b in ((high.visits, low.visits), (high.transitions, low.transitions)):
        assert float(np.float64(a).item()) + float(np.float64(b).item()) == n


ADDED_BY_USERS = [name for name in PRIVATE if PRIVATIZERS[name].strategy.per_user and PRIVATIZERS[name].law.additive]


@pytest.mark.parametrize("name", ADDED_BY_USERS)
@pytest.mark.parametrize("families", [2, 3])
def test_noise_meets_the_exact_sums(name, families, monkeypatch):
    """Noise that cancels all of a count but its last bits leaves just these, which float32 sums have rounded away."""
    H, scale, rest = 2, 0.5, 2.0**-6
    shape, privatizer = Shape(H, 2, 2, H, families, max_releases=255), PRIVATIZERS[name]
    monkeypatch.setattr(additive, "draw_like", lambda sample, key, tree: jax.tree.map(jnp.zeros_like, tree))
    table = jnp.zeros(257)
    parameters = Parameters(jnp.float32(scale), Counts(table, table, table), ())
    runtime = privatizer.runtime(privatizer, shape)
    state, zeros = runtime.init()
    noises = jax.tree.map(jnp.zeros_like, state.seed)
    large = Counts(2.0**24, 2.0**17, 2.0**24)
    unit = tuple(jnp.full_like(x, -y / scale) for x, y in zip(zeros, large, strict=True))[-families:]
    noises = (noises[0], unit) if privatizer.report.step else unit
    zero = state.cell
    totals = Totals(
        zero.visits + (2**24 + 1), zero.costs + large.costs, zero.costs - rest, zero.transitions + (2**24 + 1)
    )
    assert np.all(np.asarray(base.true_counts(totals).costs + scale * unit[-2]) == 0)  # the control: all is lost
    one, private = jnp.int32(1), jnp.bool_(True)
    nothing = base.report_one(random.key(1), privatizer.report, shape, private, zeros, one)
    state = runtime.absorb(random.key(2), parameters, State(noises, totals), nothing)
    _, counts = runtime.release(random.key(3), parameters, state, Clock(one, one, one))
    weight = privatizer.report.weight(shape)
    assert np.all(np.asarray(counts.transitions) == weight)
    assert np.all(np.asarray(counts.costs) == weight * rest)
    assert np.all(np.asarray(counts.visits) == weight * (1 if families == 3 else 2))
