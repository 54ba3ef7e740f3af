"""What flows where: counts reach a learner only through a Release, and no key is used twice."""

import inspect
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest

from jaxprivrl import mdp, noise, simulation, sweep
from jaxprivrl.learners import LEARNERS, Learner
from jaxprivrl.mdp import Counts
from jaxprivrl.privatizers import PRIVATIZERS, NoiseParameters, PrivatizerState, Release, Totals, base, reports, streams

EPISODES = 3
SMALL = mdp.make(np.array([[[0.2, 0.8], [0.5, 0.1]]]), np.full((1, 2, 2, 2), 0.5), horizon=2)
# A learner and a privatizer never see each other's keys or state, so each meets one of the other kind.
PAIRS = [*((learner, "central_laplace") for learner in LEARNERS), *(("ucb_vi", name) for name in PRIVATIZERS)]
PAIRS = list(dict.fromkeys(PAIRS))


def parts(learner, privatizer, epsilon=100.0):
    """Plan, learner and privatizer of one run, with noise and bonus small enough for counts to matter."""
    spec = sweep.SweepSpec(
        environment="small", learner=learner, privatizer=privatizer, epsilons=(epsilon,), bonus_scales=(0.01,),
        learning_rates=(1.0,), seeds=1, episodes=EPISODES,
    )  # fmt: skip
    plan = sweep.resolve(spec, SMALL)
    return plan, *sweep.parts(plan.names, plan.shape, pieces.cell_of(plan))


# Nothing but the Release.


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_takes_a_release_and_nothing_else(name):
    """By types: (shape, hyper) to build it, (key, state, release) to step, nothing to start."""
    assert list(inspect.signature(LEARNERS[name]).parameters) == ["shape", "hyper"]
    plan, _, _ = parts(name, "exact")
    made = LEARNERS[name](plan.shape, pieces.cell_of(plan).hyper)
    assert not inspect.signature(made.init).parameters
    for function, arguments in ((made.step, 3), (made.values, 2)):
        names = inspect.signature(function).parameters
        assert len(names) == arguments
        hints = typing.get_type_hints(function)
        assert hints[list(names)[-1]] is Release
        assert not {Counts, Totals, PrivatizerState} & set(hints.values())


def test_the_protocol_says_so():
    arguments, _ = typing.get_args(typing.get_type_hints(Learner)["step"])
    assert arguments[-1] is Release and len(arguments) == 3
    assert typing.get_args(typing.get_type_hints(Learner)["init"])[0] == []


@pytest.mark.parametrize("learner, privatizer", PAIRS)
def test_raw_counts_do_not_reach_the_learner(learner, privatizer):
    """Totals are replaced by other numbers under a fixed release: policy and learner state stay, bit for bit.

    Control: the next release, which is made from the totals, moves with them.
    """
    plan, _, _ = parts(learner, privatizer)
    cell = pieces.cell_of(plan)

    @pieces.jit
    def step(keys, state, cell, dynamics):
        pair = sweep.parts(plan.names, plan.shape, cell)
        policy = pair[0].step(keys.learner, state.learner, state.release)[1]
        after, regret = simulation.step(keys, state, dynamics, plan.shape, *pair)
        return after, policy, regret

    state = pieces.initial(plan, cell)
    keys = pieces.keys_of(0, EPISODES)
    for k in range(EPISODES):
        now = jax.tree.map(lambda x, k=k: x[k], keys)
        totals = jax.tree.map(lambda x: x + jnp.asarray(7, x.dtype), state.privatizer.totals)
        spoilt = state._replace(privatizer=state.privatizer._replace(totals=totals))
        after, policy, regret = step(now, state, cell, plan.dynamics)
        after_spoilt, policy_spoilt, regret_spoilt = step(now, spoilt, cell, plan.dynamics)
        np.testing.assert_array_equal(policy, policy_spoilt)
        np.testing.assert_array_equal(regret, regret_spoilt)
        jax.tree.map(np.testing.assert_array_equal, after.learner, after_spoilt.learner)
        assert np.all(np.asarray(after_spoilt.release.counts.visits) != np.asarray(after.release.counts.visits))
        state = after


def test_a_release_holds_no_raw_counts():
    """Noise of every released cell is drawn; the only exact numbers of a Release are public ones."""
    for name in PRIVATIZERS:
        if name == "exact":
            continue
        plan, _, _ = parts("ucb_vi", name, epsilon=0.5)
        cell = pieces.cell_of(plan)
        step = pieces.privatizer_step(plan.names, plan.shape)
        draws = 40 if name == "local_sampled_family" else 2  # it reports one of six parts of an episode
        keys = pieces.keys_of(1, draws).noise
        state, _ = sweep.parts(plan.names, plan.shape, cell)[1].init(plan.shape.zero_counts())
        counts = pieces.one_episode(plan)
        one, *others = (step(keys[i], cell, state, counts)[1] for i in range(draws))
        for family in range(3):
            x, true = np.asarray(one.counts[family]), np.asarray(counts[family])
            assert any(np.any(np.asarray(two.counts[family]) != x) for two in others), name
            assert any(np.any(np.asarray(two.counts[family]) != true) for two in others), name
        two = others[-1]
        jax.tree.map(np.testing.assert_array_equal, one._replace(counts=0), two._replace(counts=0))


# No key twice.


@pytest.mark.parametrize("learner, privatizer", PAIRS)
def test_no_key_is_used_twice(learner, privatizer):
    plan, *pair = parts(learner, privatizer)

    @pieces.jit
    def run(key):
        return simulation.simulate(key, SMALL, *pair, plan.shape, EPISODES)

    with jax.debug_key_reuse(True):
        assert run(noise.key(0)).shape == (EPISODES,)


@pytest.mark.parametrize("first, second", [("noise", "environment"), ("noise", "learner"), ("environment", "learner")])
def test_a_key_used_for_two_things_is_noticed(monkeypatch, first, second):
    plan, *pair = parts("ucb_vi", "central_laplace")
    honest = simulation.step

    def step(keys, *rest, **settings):
        return honest(keys._replace(**{second: getattr(keys, first)}), *rest, **settings)

    monkeypatch.setattr(simulation, "step", step)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        simulation.simulate(noise.key(0), SMALL, *pair, plan.shape, EPISODES)


def test_a_key_used_in_every_episode_is_noticed(monkeypatch):
    plan, *pair = parts("ucb_vi", "central_laplace")
    honest, fixed = simulation.step, noise.key(1)
    monkeypatch.setattr(
        simulation, "step", lambda keys, *rest, **settings: honest(keys._replace(noise=fixed), *rest, **settings)
    )
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        simulation.simulate(noise.key(0), SMALL, *pair, plan.shape, EPISODES)


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
            totals = base.add_episode(totals, Counts(visits, c * visits, visits[..., None]))
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


@pytest.mark.parametrize("name", ["local_laplace", "local_gaussian", "local_sampled", "local_sampled_family"])
@pytest.mark.parametrize("families", [2, 3])
def test_noise_meets_the_exact_sums(name, families, monkeypatch):
    """Noise that cancels all of a count but its last bits leaves just these, which float32 sums have rounded away."""
    H, scale, rest = 2, 0.5, 2.0**-6
    shape = mdp.Shape(H, 2, 2, H, families, 255)
    for module in (streams, reports):
        monkeypatch.setattr(module, "draw_like", lambda sample, key, tree: jax.tree.map(jnp.zeros_like, tree))
    table = jnp.zeros(257)
    parameters = NoiseParameters(jnp.float32(scale), Counts(table, table, table), jnp.zeros((2, 5)))
    privatizer = PRIVATIZERS[name](shape, parameters)
    state, _ = privatizer.init(shape.zero_counts())
    noises = jax.tree.map(jnp.zeros_like, state.noise)
    large = Counts(2.0**24, 2.0**17, 2.0**24)
    unit = tuple(jnp.full_like(x, -y / scale) for x, y in zip(shape.zero_counts(), large, strict=True))[-families:]
    noises = (noises[0], unit) if "sampled" in name else unit
    zero = state.totals
    totals = Totals(
        zero.visits + (2**24 + 1), zero.costs + large.costs, zero.costs - rest, zero.transitions + (2**24 + 1)
    )
    assert np.all(np.asarray(base.true_counts(totals).costs + scale * unit[-2]) == 0)  # the control: all is lost
    _, release = privatizer.step(noise.key(0), state._replace(noise=noises, totals=totals), shape.zero_counts())
    weight = {"local_sampled": H, "local_sampled_family": H * families}.get(name, 1)
    assert np.all(np.asarray(release.counts.transitions) == weight)
    assert np.all(np.asarray(release.counts.costs) == weight * rest)
    assert np.all(np.asarray(release.counts.visits) == weight * (1 if families == 3 else 2))
