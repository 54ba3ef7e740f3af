"""Conformance: every registered object keeps its protocol, alone and in pairs, and so may one that is not registered.

What is checked of each kind of object is said in `jaxprivrl.experiments.conformance`. The controls are objects with one
thing wrong, each of which must be named.
"""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest

from jaxprivrl import environments, mdp
from jaxprivrl.environments import ENVIRONMENTS, Environment, Table
from jaxprivrl.experiments.conformance import check_environment, check_learner, check_privatizer, check_schedule
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.learners import LEARNERS, Learner, Metric, Plan, Steps
from jaxprivrl.parameters import Parameter
from jaxprivrl.privacy.laws import Laplace
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.strategies import NoiseStream, Norms, Strategy, as_float
from jaxprivrl.privatizers import PRIVATIZERS, Privatizer
from jaxprivrl.privatizers.runtimes import additive
from jaxprivrl.privatizers.streams import draw_like
from jaxprivrl.schedules import SCHEDULES, ScheduleKind

EPISODES = 3


@pytest.mark.parametrize("privatizer", PRIVATIZERS.values(), ids=PRIVATIZERS)
def test_every_privatizer_conforms(privatizer):
    check_privatizer(privatizer)


@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_every_learner_conforms(learner):
    check_learner(learner)


@pytest.mark.parametrize("kind", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule_conforms(kind):
    check_schedule(kind)


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_every_environment_conforms(environment, tmp_path):
    given = {}
    if environment.required:
        model = pieces.random_mdp(0, (4, 3, 2))
        np.savez(tmp_path / "own.npz", costs=model.costs, transitions=model.transitions, initial=model.initial)
        values = {"path": str(tmp_path / "own.npz"), "of": "deep_sea:size=4", "id": "FrozenLake-v1"}
        given = {name: values[name] for name in environment.required}
    check_environment(environment, **given)


def test_values_and_a_horizon_may_be_given():
    check_schedule(SCHEDULES["geometric"], first=0.05, growth=1.1)
    check_environment(ENVIRONMENTS["deep_sea"], horizon=7, size=4)


# Pairs.


@functools.cache
def plan_of(learner, privatizer):
    spec = SweepSpec(
        environment="random",
        learner=learner,
        privatizer=privatizer,
        epsilons=(5.0, 50.0, 500.0),
        seeds=2,
        episodes=EPISODES,
        grid={"bonus_scale": 0.02},
    )
    return resolve(spec, pieces.random_mdp(1, (2, 3, 2), bernoulli=True))


def check_like(x, y):
    """Same structure, shapes and types."""
    assert jax.tree.structure(x) == jax.tree.structure(y)
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype


@pytest.mark.parametrize("privatizer", PRIVATIZERS)
@pytest.mark.parametrize("learner", LEARNERS)
def test_every_pair_plays(learner, privatizer):
    plan = plan_of(learner, privatizer)
    first, again = (tuple(pieces.episodes(plan, pieces.cell_of(plan))) for _ in range(2))
    check_like(first, again)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    state, release = pieces.initial(plan, pieces.cell_of(plan))
    for k, episode in enumerate(first):
        check_like(state, episode.state._replace(learner=episode.learner_state))
        check_like(release, episode.after)
        assert int(episode.after.num_episodes) == int(episode.state.clock.users) == k + 1
        assert episode.values.shape == plan.mdp.shape[:2]
        assert 0 <= float(episode.regret) <= 2
    assert any(np.any(x) for x in pieces.totals_of(first[-1].state))


# Objects of one's own.


@dataclasses.dataclass(frozen=True)
class Flat(Strategy):
    """C = A: each release gets fresh noise, and a leaf is in all releases from its own on."""

    summed = True

    def norms(self, num_leaves):
        return Norms(float(num_leaves), math.sqrt(num_leaves))

    def units(self, xp, data, j):
        return as_float(xp, xp.minimum(j, 1))

    def worst_units(self, num_leaves):
        return 1.0

    def dense(self, num_leaves, num_releases):
        return np.eye(num_releases)

    def noisy_sums(self, num_releases):
        return [(k, 0) for k in range(1, num_releases + 1)]

    def stream(self, shape, law):
        return NoiseStream(lambda zeros: zeros, lambda key, zeros, j, data: (zeros, draw_like(law.sample, key, zeros)))


MINE = Privatizer("mine", trust="JDP", report=Report(), law=Laplace(), strategy=Flat(), runtime=additive)


def uniform_learner(step=lambda key, shape, state, release: (state + 1.0, jnp.full(sizes(shape), 1 / 2))):
    """A learner with a counter for a state, and the uniform policy of two actions."""

    def make(shape, hyper):
        def whole(key, state, release):
            state, policy = step(key, shape, state, release)
            return state, policy if isinstance(policy, Plan) else Plan(policy), ()

        return Steps(lambda: jnp.zeros(()), whole)

    return Learner("mine", make, (Parameter("patience", 1.0, "unused"),))


def sizes(shape):
    return shape.horizon, shape.num_states, shape.num_actions


def test_objects_need_no_registry():
    assert MINE.name not in PRIVATIZERS
    check_privatizer(MINE)
    check_learner(uniform_learner())
    check_schedule(ScheduleKind("squares", "1, 4, 9, ..", (), lambda K: [i * i for i in range(1, math.isqrt(K) + 1)]))
    table = Table(5, np.zeros((1, 2, 2)), np.full((1, 2, 2, 2), 0.5), 0)
    check_environment(Environment("mine", "two states", (), lambda horizon: table._replace(horizon=horizon or 5)))


# Controls: one thing wrong.


def mine(**changes):
    """The mechanism above with parts of its runtime wrapped: `release=lambda runtime, *arguments: ...`."""

    def runtime(privatizer, shape):
        honest = additive(privatizer, shape)
        return honest._replace(**{name: functools.partial(f, honest) for name, f in changes.items()})

    return dataclasses.replace(MINE, runtime=runtime)


def own(runtime):
    return dataclasses.replace(PRIVATIZERS["local_laplace"], name="mine", runtime=runtime)


class Generous(Laplace):
    """Half the noise, and a guarantee that does not admit it."""

    def scale_for(self, moves, epsilon, dp_delta):
        return super().scale_for(moves, epsilon, dp_delta) / 2

    def epsilons(self, moves, scale, dp_deltas):
        return super().epsilons(moves, 2 * scale, dp_deltas)


class Forgetful(Laplace):
    """Half the noise, and a guarantee that finds it."""

    def scale_for(self, moves, epsilon, dp_delta):
        return super().scale_for(moves, epsilon, dp_delta) / 2


class Unequal(Flat):
    """Equal to itself alone."""

    __eq__, __hash__ = object.__eq__, object.__hash__


def fixed_key(runtime, key, parameters, state, clock):
    return runtime.release(jax.random.key(0), parameters, state, clock)


def loud(runtime, key, parameters, state, clock):
    return runtime.release(key, parameters._replace(scale=jnp.maximum(parameters.scale, 1.0)), state, clock)


def quiet(runtime, key, parameters, state, clock):
    return runtime.release(key, parameters._replace(scale=0.9 * parameters.scale), state, clock)


def data_dependent(runtime, key, parameters, state, clock):
    seen = jnp.sum(state.cell.visits[0, 0]).astype(jnp.float32)
    return runtime.release(key, parameters._replace(scale=parameters.scale * (1 + 0.01 * seen)), state, clock)


def forgotten_count(runtime, key, parameters, state, clock):
    state, noisy = runtime.release(key, parameters, state, clock)
    return state, noisy._replace(costs=noisy.costs.at[0, 0, 0].set(state.cell.costs[0, 0, 0]))


def biased(runtime, key, parameters, state, clock):
    state, noisy = runtime.release(key, parameters, state, clock)
    return state, noisy._replace(costs=noisy.costs + 0.2 * parameters.scale)


def not_a_number(runtime, parameters, counts, clock):
    release = runtime.view(parameters, counts, clock)
    none = (1 - jnp.minimum(clock.users, 1)).astype(jnp.float32)
    return release._replace(error=jax.tree.map(lambda e: e / none, release.error))


def smaller_type(runtime, *arguments):
    state = runtime.absorb(*arguments)
    return state._replace(cell=state.cell._replace(visits=state.cell.visits.astype(jnp.int16)))


def longer_seed(runtime, *arguments):
    state = runtime.absorb(*arguments)
    return state._replace(seed=(state.seed[0], *state.seed))


calls = itertools.count(1)


def impure(runtime, key, parameters, state, clock):
    factor = np.float32(1 + 0.01 * next(calls))  # another one in every trace
    return runtime.release(key, parameters._replace(scale=factor * parameters.scale), state, clock)


@jax.custom_batching.custom_vmap
def same_in_all_lanes(x):
    return x


@same_in_all_lanes.def_vmap
def _first_lane(axis_size, in_batched, x):
    return jnp.broadcast_to(x[:1], x.shape), True


def leaking_between_lanes(runtime, key, parameters, state, clock):
    state, noisy = runtime.release(key, parameters, state, clock)
    return state, noisy._replace(costs=same_in_all_lanes(noisy.costs))


def one_draw_for_all(privatizer, shape):
    honest = additive(privatizer, shape)

    def absorb(key, parameters, state, users):
        return honest.absorb(key, parameters, state, users._replace(number=1))

    return honest._replace(absorb=absorb)


WRONG_PRIVATIZERS = {
    "unequal": (dataclasses.replace(MINE, strategy=Unequal()), "not equal to a copy of itself"),
    "guarantee": (dataclasses.replace(MINE, law=Forgetful()), r"scale .* for epsilon=0\.5 .* which gives 1; expected"),
    "start": (mine(init=lambda r: (r.init()[0], mdp.Counts(*(1 + x for x in r.init()[1])))), "expected exact zeros"),
    "kind": (mine(view=lambda r, p, counts, clock: (counts,)), "shows a tuple; expected a Release"),
    "types": (mine(absorb=smaller_type), r"changes .*visits.* from int32\[2, 3, 2\] to int16\[2, 3, 2\]"),
    "structure": (mine(absorb=longer_seed), "changes the structure of its state"),
    "key": (mine(release=fixed_key), "does not follow the key"),
    "infinity": (mine(release=loud), "at epsilon=inf does not release the true counts"),
    "counts": (mine(release=data_dependent), "noise that depends on the counts"),
    "error": (mine(view=not_a_number), "not finite"),
    "jit": (mine(release=impure), "other numbers without jit"),
    "lanes": (mine(release=leaking_between_lanes), "in a lane of a batch than alone"),
    "mean": (mine(release=biased), "noise on costs with a mean that is not 0"),
    "std": (mine(release=quiet), "states a std of .* on visits, and .* is measured"),
    "silence": (mine(release=forgotten_count), "leaves 1 counts of costs without noise"),
    "absorb": (own(one_draw_for_all), "of another law when users are absorbed at once"),
    "claim": (
        dataclasses.replace(own(additive), law=Generous()),
        r"claims epsilon=1, and an audit finds 1\.\d+ or more",
    ),
}


@pytest.mark.parametrize("control", WRONG_PRIVATIZERS)
def test_what_is_wrong_with_a_privatizer_is_named(control):
    privatizer, message = WRONG_PRIVATIZERS[control]
    with pytest.raises(AssertionError, match=rf"(?s)Privatizer 'mine' .*{message}"):
        check_privatizer(privatizer)


def half(key, shape, state, release):
    return state, jnp.full(sizes(shape), 0.25)


def by_release(key, shape, state, release):
    enough = jnp.minimum(release.error.visits / 1e6, 1.0)
    return state, jnp.full(sizes(shape), 0.5) + enough * jnp.array([-1.0, 1.0])[None, None]


def by_call(key, shape, state, release):
    p = np.float32(1 / (2 + next(calls)))
    return state, jnp.broadcast_to(jnp.array([p, 1 - p])[None, None], sizes(shape))


def by_lane(key, shape, state, release):
    p = same_in_all_lanes(jax.nn.sigmoid(release.counts.visits[0, 0, 0])[None])[0]
    return state, jnp.broadcast_to(jnp.stack([p, 1 - p])[None, None], sizes(shape))


def endless(key, shape, state, release):
    return state + jnp.float32(np.inf), jnp.full(sizes(shape), 0.5)


def with_parameter(*parameters):
    return dataclasses.replace(uniform_learner(), parameters=parameters)


WRONG_LEARNERS = {
    "name": (with_parameter(Parameter("num_episodes", 1.0, "told already")), "expected different names"),
    "default": (
        with_parameter(Parameter("patience", -1.0, "", LEARNERS["ucb_vi"].parameters[0].check)),
        r"refuses its own default: Expected patience=-1\.0",
    ),
    "postprocess": (dataclasses.replace(uniform_learner(), postprocess="clop"), "has postprocess='clop'; expected one"),
    "reduce": (
        dataclasses.replace(uniform_learner(), metrics=(Metric("m", "", "max", lambda info, initial: initial[0]),)),
        "reduces 'm' by 'max'",
    ),
    "metric": (
        dataclasses.replace(uniform_learner(), metrics=(Metric("m", "", "sum", lambda info, initial: initial),)),
        r"expected f32\[\] each",
    ),
    "state": (
        uniform_learner(lambda k, shape, s, r: (s[None], half(k, shape, s, r)[1])),
        r"changes .* to float32\[1\]",
    ),
    "shape": (uniform_learner(lambda k, shape, s, r: (s, jnp.ones((1, 3, 2)))), "returns another kind of plan"),
    "type": (uniform_learner(lambda k, shape, s, r: (s, jnp.ones(sizes(shape), int))), "returns another kind of plan"),
    "reporting": (
        uniform_learner(lambda k, shape, s, r: (s, Plan(jnp.full(sizes(shape), 0.5), jnp.ones(sizes(shape))))),
        "reporting rule",
    ),
    "rows": (uniform_learner(half), "rows that are no distributions after 0 users at epsilon=5;"),
    "some rows": (uniform_learner(by_release), r"rows that are no distributions after \d+ users at epsilon=1e-06;"),
    "finite": (uniform_learner(endless), "a state or a metric that is not finite"),
    "jit": (uniform_learner(by_call), "other numbers without jit"),
    "lanes": (uniform_learner(by_lane), "in a lane of a batch than alone"),
}


@pytest.mark.parametrize("control", WRONG_LEARNERS)
def test_what_is_wrong_with_a_learner_is_named(control):
    learner, message = WRONG_LEARNERS[control]
    with pytest.raises(AssertionError, match=f"(?s)Learner 'mine' .*{message}"):
        check_learner(learner)


def test_what_is_wrong_with_a_schedule_is_named():
    drawn = itertools.count(1)
    moving = ScheduleKind("mine", "", (), lambda K: [K] if K == 1 else [1 + next(drawn) % (K - 1), K])
    with pytest.raises(AssertionError, match=r"Schedule 'mine' has .* others when asked again; expected K to fix them"):
        check_schedule(moving)
    with pytest.raises(AssertionError, match="refused for every number of users"):
        check_schedule(ScheduleKind("mine", "", (), lambda K: [0, K]))
    lost = ScheduleKind("mine", "", (Parameter("rate", 0.1, ""),), lambda K, rate: [K])
    lost = dataclasses.replace(lost, parameters=(Parameter("rate", 0.1, "", lambda name, value: value + 1),))
    with pytest.raises(AssertionError, match="when its text is read; expected itself"):
        check_schedule(lost)


STAY = np.broadcast_to(np.eye(2)[None, :, None], (1, 2, 2, 2))
WRONG_TABLES = {
    "costs": ({"costs": np.full((1, 2, 2), 1.5)}, r"cannot be made: costs\[h=0, s=0, a=0\] is 1\.5"),
    "end": ({"ends": (0,), "transitions": STAY, "costs": np.full((1, 2, 2), 0.5)}, "cannot be made: State 0 is no end"),
    "support": ({"support": np.zeros((1, 2, 2, 2), bool)}, "cannot be made: .* expected 0 outside the support"),
    "horizon": ({"horizon": 5}, "has horizon=5 when asked for 3"),
    "picture": ({"grid": environments.Grid(1, 2, np.array([0, 2]))}, "states off its picture of 1 x 2"),
    "actions": ({"actions": ("stay",)}, "names 1 actions; expected 2"),
    "units": ({"native": (0.0, 1.0)}, "expected a scale that is not 0"),
}


@pytest.mark.parametrize("control", WRONG_TABLES)
def test_what_is_wrong_with_an_environment_is_named(control):
    changes, message = WRONG_TABLES[control]

    def table(horizon):
        honest = Table(horizon or 5, np.zeros((1, 2, 2)), np.full((1, 2, 2, 2), 0.5), 0)
        return honest._replace(**changes)

    with pytest.raises(AssertionError, match=f"Environment 'mine' .*{message}"):
        check_environment(Environment("mine", "", (), table))


def test_an_environment_that_is_drawn_anew_is_named():
    rng = np.random.default_rng(0)

    def table(horizon):
        return Table(horizon or 5, rng.uniform(size=(1, 2, 2)), np.full((1, 2, 2, 2), 0.5), 0)

    with pytest.raises(AssertionError, match="Environment 'mine' is another when made again from 'mine'"):
        check_environment(Environment("mine", "", (), table))
