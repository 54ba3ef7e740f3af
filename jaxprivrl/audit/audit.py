"""Empirical lower bounds on epsilon: the real code, run many times on two neighbouring inputs.

An audit draws samples that share no key. One fits what must be learned and fixes the position of the changed user, the
score and its threshold (see `attacks`); another counts how often each input passes that one threshold. The bound is
Clopper-Pearson on the latter alone, so its confidence statement holds whatever the former has found.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import _validate
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.audit import attacks
from jaxprivrl.audit.attacks import Attack, Views
from jaxprivrl.engine import episodes
from jaxprivrl.engine.episodes import Agent
from jaxprivrl.engine.run import release_times
from jaxprivrl.learners import POSTPROCESSORS, Learner
from jaxprivrl.learners.postprocess import compose
from jaxprivrl.mdp import MDP, Counts
from jaxprivrl.numerics import random
from jaxprivrl.numerics.runtime import COMPILER_OPTIONS
from jaxprivrl.privacy import accounting
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privatizers.base import Parameters, encode, parameters, pool
from jaxprivrl.problem import Problem, Shape

Array = jax.Array
Key = jax.Array

MAX_EPISODES = 64  # a central audit replays whole streams of releases
MAX_SAMPLES, MAX_COUNTERS = 10**9, 2**20  # what memory holds
_LOCAL_EPISODES = 2  # reports are independent; two of them show noise that is shared between users
_MIN_SELECTION = 20_000  # runs of each input that choose the attack
_MEMORY_FLOATS = 2**24  # features of such runs, held in memory
_BATCH_FLOATS = 2**18  # counters of the runs of one batch
_BUFFER_FLOATS = 2**22  # features of the runs of one call
_COMPILER_OPTIONS = {**COMPILER_OPTIONS, "xla_backend_optimization_level": 1}  # twice as fast to compile as at 3
_PURPOSES = {"select": 0, "test": 1, "power": 2}


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """What an audit found; MEANINGS says what each field means."""

    privatizer: str
    calibration: str
    epsilon_claimed: float
    epsilon_lower_bound: float
    confidence: float
    samples: int
    dp_delta: float
    verdict: str
    epsilon_accounted: float
    position: int
    score: str
    power_bound: float
    power_warning: str | None

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON-safe values; infinity is the string "inf"."""
        fields = dataclasses.asdict(self)
        return {k: "inf" if isinstance(v, float) and math.isinf(v) else v for k, v in fields.items()}


MEANINGS: Mapping[str, str] = {
    "privatizer": "the mechanism whose claim is audited",
    "calibration": "how its noise was chosen",
    "epsilon_claimed": "the claim that is judged: the epsilon asked for",
    "epsilon_lower_bound": "the real code leaks at least this epsilon",
    "confidence": "probability that this lower bound is true, whatever the mechanism",
    "samples": "runs of the real code on each of two neighbouring inputs",
    "dp_delta": "delta of the claim; 0 for a pure epsilon",
    "verdict": "violated if epsilon_lower_bound exceeds epsilon_claimed, else consistent",
    "epsilon_accounted": "what the accounting says of this noise; inf: no privacy",
    "position": "the user in whom the two inputs differ, counted from 1",
    "score": "what tells outputs apart: their exact likelihood ratio, or one learned on other runs",
    "power_bound": "lower bound to expect if the truth were twice the claim; it must exceed the claim",
    "power_warning": "set if power_bound does not exceed the claim: then consistent says little",
}  # for the table of an AuditResult


class Claim(NamedTuple):
    """A checked claim with the noise that is to keep it.

    Attributes:
      privatizer: whose claim.
      calibration: name.
      problem: sizes.
      epsilon: the claim; inf for none.
      dp_delta: 0 for a pure claim.
      noise: what the privatizer is given in a real run, before any multiplier.
    """

    privatizer: Privatizer
    calibration: str
    problem: Problem
    epsilon: float
    dp_delta: float
    noise: Parameters

    @property
    def doubled_scale(self) -> float:
        """Scale of a draw of the same mechanism at twice the epsilon."""
        return accounting.noise_scale(self.privatizer, self.problem, 2 * self.epsilon, dp_delta=self.dp_delta or None)

    def accounted(self, scale: float) -> float:
        """The epsilon that accounting gives a noise scale, in the form of the claim."""
        deltas = (self.dp_delta,) if self.dp_delta else ()
        result = accounting.guarantee(self.privatizer, self.problem, scale, dp_deltas=deltas)
        return result.epsilon_at_delta[self.dp_delta] if self.dp_delta else result.epsilon_pure


class Experiment(NamedTuple):
    """One position of the changed user.

    Attributes:
      run: static pure function `(key, parameters, arguments) -> f32[F]`, the features of one run.
      static: arguments of `run` that come before its key.
      arguments: pytree of arrays for either input.
      num_features: F.
      known: weights of the exact score, or None.
    """

    run: Callable[..., Array]
    static: tuple[Any, ...]
    arguments: tuple[Any, Any]
    num_features: int
    known: np.ndarray | None


def audit(
    privatizer: Privatizer,
    problem: Problem,
    epsilon: float,
    *,
    dp_delta: float = 1e-5,
    target: str | None = None,
    calibration: str = "tight",
    noise_multiplier: float = 1.0,
    samples: int = 100_000,
    position: int | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    code: Privatizer | None = None,
) -> AuditResult:
    """Bounds the epsilon of a privatizer from below by running it on two worst-case neighbouring inputs.

    One user of a stream of episodes is replaced by one whose cells differ at every step, with costs 1; all others stay.
    The whole stream of releases (local: of reports) is scored by the exact log-likelihood ratio of the mechanism, and
    by a score learned on a separate sample, which sees what a faulty implementation leaks elsewhere.

    Args:
      privatizer: whose claim, noise scale and likelihood ratio.
      problem: sizes; central mechanisms replay all of num_episodes, at most MAX_EPISODES.
      epsilon: the claim; > 0, inf for none.
      dp_delta: of an approximate claim.
      target: "pure", "approximate" or None for the mechanism's own.
      calibration: how the noise scale is chosen (see `accounting`).
      noise_multiplier: multiplies the noise that is used, for controls.
      samples: runs of each input behind the bound; half as many more for each position choose the attack, and
        again as many tell the power.
      position: the changed user, from 1; None tries every one on the separate sample (local: the first).
      seed: of all randomness.
      confidence: of the bound, in (0.5, 1).
      code: the code under test, if it is not the privatizer's own.

    Returns:
      AuditResult. An honest mechanism is found "violated" with probability at most 1 - confidence.

    Example:
      >>> audit(PRIVATIZERS["local_laplace"], Problem(1, 2, 2, 2), 1.0, samples=20_000, noise_multiplier=0.5).verdict
      'violated'

    Reference: Jagielski, Ullman and Oprea, NeurIPS 2020, for bounds from counts.
    """
    _check_run(samples, confidence, noise_multiplier)
    _check_size(problem)
    claim = _claim(privatizer, problem, epsilon, dp_delta, target, calibration)
    local = privatizer.trust == "LDP" and problem.schedule.every
    K, shape = _episodes(problem, position, whole=not local), problem.shape
    times = problem.schedule.times(problem.num_episodes)[:K] if problem.schedule.every else problem.schedule.times(K)
    J = len(times)
    users = _users(shape)
    pooled = [encode(shape, pool(shape, user)) for user in users]
    cells = attacks.changed_cells(pooled[0], pooled[1], shape.families)
    each = [np.concatenate([np.ravel(x)[list(c)] for x, c in zip(user, cells, strict=True)]) for user in pooled]
    # A sampled step stands for all of them, a sampled family of it for all families too.
    weight = privatizer.report.weight(shape)
    epoch_of = np.searchsorted(times, np.arange(1, K + 1)) + 1
    experiments = {}
    # Reports are alike: one user speaks for all.
    everyone = (1,) if privatizer.trust in ("LDP", "SDP") else tuple(range(1, K + 1))
    for p in everyone if position is None else (position,):
        contributions = []
        for b in (0, 1):
            rows = np.stack([each[b * (k == p)] for k in range(1, K + 1)])
            contributions.append(weight * np.stack([rows[epoch_of == j].sum(0) for j in range(1, J + 1)]))
        views = attacks.make_views(*contributions)
        streams = [
            jax.tree.map(lambda old, new: jnp.stack([new if k == p else old for k in range(1, K + 1)]), users[0], user)  # noqa: B023
            for user in users
        ]
        leaves = privatizer.num_leaves(problem)
        experiments[p] = Experiment(
            _released,
            (code or privatizer, shape, cells, tuple(int(t) for t in times)),
            ((streams[0], views), (streams[1], views)),
            J + len(attacks.pairs(J)),
            attacks.exact_weights(privatizer, leaves, J, int(epoch_of[p - 1])),
        )
    return _audit(claim, experiments, noise_multiplier, samples, seed, confidence)


def audit_end_to_end(
    learner: Learner,
    privatizer: Privatizer,
    mdp: MDP,
    epsilon: float,
    *,
    problem: Problem,
    dp_delta: float = 1e-5,
    target: str | None = None,
    calibration: str = "tight",
    hyper: Mapping[str, float] | None = None,
    noise_multiplier: float = 1.0,
    samples: int = 20_000,
    position: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
    code: Privatizer | None = None,
) -> AuditResult:
    """Bounds the epsilon of all that other users see: the policies of every episode after the replaced user's.

    Whole runs are played, learner, users and privatizer, with the counts of one user replaced. Policies up to that
    episode do not depend on it. No likelihood ratio is known here: the score is a linear discriminant of the policies,
    learned on a separate sample. What leaks around the privatizer shows here; what a learner hides does not.

    Args:
      learner: it runs with the post-processing that its paper says.
      privatizer: whose claim and noise scale.
      mdp: a small MDP.
      epsilon, dp_delta, target, calibration, noise_multiplier: as in `audit`.
      problem: sizes of the MDP, at most MAX_EPISODES episodes; what user K + 1 would be told is looked at too.
      hyper: values of the learner's parameters; any keep the claim.
      samples: runs of each input behind the bound, as in `audit`.
      position: the changed user, from 1.
      seed, confidence: as in `audit`.
      code: the privatizer's code under test, if it is not its own.

    Returns:
      AuditResult with score "learned".
    """
    _check_run(samples, confidence, noise_multiplier)
    if (problem.horizon, problem.num_states, problem.num_actions) != mdp.shape:
        raise ValueError(f"The problem is not of the sizes {mdp.shape} of the MDP. Pass those as H, S and A.")
    if problem.homogeneous and not mdp_lib.is_homogeneous(mdp):
        raise ValueError("The stages of this MDP differ, so counts cannot be pooled over h. Drop homogeneous.")
    claim = _claim(privatizer, problem, epsilon, dp_delta, target, calibration)
    K, shape = _episodes(problem, position, whole=True), problem.shape
    values = learner.defaults(problem) | dict(hyper or {}) | {"num_episodes": float(K)}
    numbers = {name: jnp.float32(value) for name, value in values.items()}
    times = release_times(problem.schedule.times(K), problem.schedule.every)
    first, second = ((user, numbers, mdp_lib.prepare(mdp), times) for user in _users(shape))
    size = (K - position + 1) * math.prod(mdp.shape)
    experiment = Experiment(_policies, ((learner, code or privatizer), shape, K, position), (first, second), size, None)
    return _audit(claim, {position: experiment}, noise_multiplier, samples, seed, confidence)


def _check_run(samples: int, confidence: float, noise_multiplier: float) -> None:
    if samples != int(samples) or samples < 1000:
        raise ValueError(f"Expected samples={samples} >= 1000. Fewer bound nothing; pass samples=100000.")
    if samples > MAX_SAMPLES:
        raise ValueError(f"Expected samples={samples} <= {MAX_SAMPLES}, as a number of each is kept. Pass fewer.")
    if not 0.5 < confidence < 1.0:
        raise ValueError(f"Expected 0.5 < confidence={confidence} < 1. Pass a probability such as confidence=0.95.")
    _validate.finite_at_least("noise_multiplier", noise_multiplier, 0.0, "Use 1 for the noise as calibrated.")


def _check_size(problem: Problem) -> None:
    H, S, A = problem.horizon, problem.num_states, problem.num_actions
    counters = H * S * A * (S + 2)
    if counters > MAX_COUNTERS:
        raise ValueError(
            f"Expected H S A (S + 2) = {counters} <= {MAX_COUNTERS} counters, as an audit holds those of many runs. "
            "Pass a shorter horizon or fewer states."
        )


def _claim(
    privatizer: Privatizer, problem: Problem, epsilon: float, dp_delta: float, target: str | None, calibration: str
) -> Claim:
    """Asks accounting for the noise of a claim."""
    chosen = accounting.calibrate(
        privatizer, problem, epsilon, dp_delta=dp_delta, target=target, calibration=calibration
    )
    noise = jax.tree.map(jnp.asarray, parameters(privatizer, problem, chosen))
    return Claim(privatizer, calibration, problem, epsilon, chosen.guarantee.nominal_dp_delta or 0.0, noise)


def _episodes(problem: Problem, position: int | None, whole: bool) -> int:
    """Episodes to run: all of them, or as many as independent reports need."""
    K = problem.num_episodes
    most = min(K, MAX_EPISODES)
    if position is not None and not 1 <= position <= most:
        raise ValueError(f"Expected 1 <= position={position} <= {most}. Users are counted from 1.")
    if not whole:
        return min(K, max(_LOCAL_EPISODES, position or 0))
    if K > MAX_EPISODES:
        raise ValueError(
            f"Expected num_episodes={K} <= {MAX_EPISODES}, as an audit replays whole streams. Pass fewer episodes."
        )
    return K


def _users(shape: Shape) -> tuple[Counts, Counts]:
    """Counts of two users whose cells differ at every step, with costs 1: the worst pair for either stage axis."""
    S, A = shape.num_states, shape.num_actions
    if S * A < 2:
        raise ValueError(f"Expected S={S} times A={A} to be at least 2: neighbours must differ. Pass more actions.")

    def user(s: int, a: int) -> Counts:
        at = jnp.full((shape.horizon,), s, jnp.int32)
        return episodes.tally(shape, episodes.Trajectory(at, jnp.full_like(at, a), jnp.ones(shape.horizon), at))

    return user(0, 0), (user(0, 1) if A > 1 else user(1, 0))


def _released(
    privatizer: Privatizer,
    shape: Shape,
    cells: tuple[tuple[int, ...], ...],
    times: tuple[int, ...],
    key: Key,
    parameters: Parameters,
    arguments: tuple[Counts, Views],
) -> Array:
    """One run of a privatizer over a stream of users: features of the changed cells of its releases."""
    stream, views = arguments
    runtime = privatizer.runtime(privatizer, shape)
    agent = Agent(shape, privatizer, runtime, parameters, jnp.asarray(release_times(np.array(times), shape.every)))

    def step(state: Any, now: tuple[Key, Counts]) -> tuple[Any, Array]:
        state = episodes.observe(now[0], state, agent, now[1])
        noisy = encode(shape, state.released)  # as they got their noise: a Release has the visits' half added back
        seen = [x.reshape(-1)[np.array(c, int)] for x, c in zip(noisy, cells, strict=True) if c]
        return state, jnp.concatenate(seen)

    keys = episodes.episode_keys(key, jnp.arange(stream.visits.shape[0]))
    start = episodes.init(runtime, ())
    seen = jax.lax.scan(step, start, (keys, stream), unroll=keys.shape[0] <= 2)[1]
    return attacks.features(views, seen[np.array(times) - 1])


def _policies(
    objects: tuple[Learner, Privatizer],
    shape: Shape,
    K: int,
    position: int,
    key: Key,
    parameters: Parameters,
    arguments: Any,
) -> Array:
    """One whole run with one user replaced: the policies of all later episodes, flat."""
    learner, privatizer = objects
    user, hyper, dynamics, times = arguments
    runtime = privatizer.runtime(privatizer, shape)
    steps = compose(shape, POSTPROCESSORS[learner.postprocess], hyper, learner.make(shape, hyper))
    agent = Agent(shape, privatizer, runtime, parameters, times)
    keys = jax.tree.map(lambda k: episodes.episode_keys(k, jnp.arange(K + 1)), episodes.streams(key))

    def plan(key: Key, state: episodes.RunState) -> tuple[Any, Array]:
        view = runtime.view(parameters, state.released, state.clock)
        learner_state, chosen, _ = steps.step(key, state.learner, view)
        return learner_state, chosen.policy

    def step(state: episodes.RunState, now: tuple[episodes.Streams, Array]) -> tuple[episodes.RunState, Array]:
        streams, k = now
        learner_state, policy = plan(streams.learner, state)
        counts = episodes.tally(shape, episodes.play(streams.environment, dynamics, policy)[0])
        counts = jax.tree.map(lambda played, replaced: jnp.where(k == position, replaced, played), counts, user)
        return episodes.observe(streams.noise, state._replace(learner=learner_state), agent, counts), policy

    start = episodes.init(runtime, steps.init())
    last, policies = jax.lax.scan(step, start, (jax.tree.map(lambda k: k[:K], keys), jnp.arange(1, K + 1)))
    next_policy = plan(keys.learner[K], last)[1]
    return jnp.concatenate([policies, next_policy[None]])[position:].reshape(-1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), compiler_options=_COMPILER_OPTIONS)
def _program(
    run: Callable[..., Array], static: tuple[Any, ...], batches: int, batch: int, num_features: int,
    key: Key, count: Array, parameters: Parameters, arguments: Any,
) -> Array:  # fmt: skip
    """The first `count` of f32[batches, batch, F]: one compilation whatever the number of runs."""
    keys = jax.random.split(key, batches)
    lanes = jax.vmap(functools.partial(run, *static), in_axes=(0, None, None))

    def body(i: Array, out: Array) -> Array:
        return out.at[i].set(lanes(jax.random.split(keys[i], batch), parameters, arguments))

    return jax.lax.fori_loop(0, count, body, jnp.zeros((batches, batch, num_features)))


def _sample(
    experiment: Experiment, which: int, key: Key, runs: int, parameters: Parameters, weights: np.ndarray | None
) -> np.ndarray:
    """Independent runs on one input: their features f32[runs, F], or scores f64[runs], in batches that bound memory."""
    shape, F = experiment.static[1], experiment.num_features
    counters = shape.num_stages * shape.num_states * shape.num_actions * (2 + shape.num_states)
    batch = int(np.clip(_BATCH_FLOATS // counters, 64, 4096))
    batches = int(np.clip(_BUFFER_FLOATS // (batch * F), 1, 64))
    parts = []
    for i, start in enumerate(range(0, runs, batches * batch)):
        count = min(batches, math.ceil((runs - start) / batch))
        part = _program(
            experiment.run, experiment.static, batches, batch, F,
            jax.random.fold_in(key, i), jnp.int32(count), parameters, experiment.arguments[which],
        )  # fmt: skip
        block = np.asarray(part)[:count].reshape(count * batch, F)
        if not np.all(np.isfinite(block)):
            bad = int(np.sum(~np.all(np.isfinite(block), 1)))
            raise ValueError(
                f"{bad} of {len(block)} runs released NaN or infinity; expected numbers. Mend the sampler."
            )
        parts.append(block if weights is None else attacks.apply(block, weights))
    return np.concatenate(parts)[:runs]


def _audit(
    claim: Claim,
    experiments: Mapping[int, Experiment],
    noise_multiplier: float,
    samples: int,
    seed: int,
    confidence: float,
) -> AuditResult:
    """Chooses an attack on one sample, bounds epsilon by it on another, and asks what twice the claim would give."""
    root, significance = random.key(seed), 1.0 - confidence
    scale = float(claim.noise.scale) * noise_multiplier

    def sample(purpose: str, p: int, scale: float, runs: int, weights: np.ndarray | None = None) -> list[np.ndarray]:
        stream = [2 * (_PURPOSES[purpose] * (MAX_EPISODES + 1) + p) + which for which in (0, 1)]
        keys = [jax.random.fold_in(root, i) for i in stream]
        parameters = claim.noise._replace(scale=jnp.float32(scale))
        return [_sample(experiments[p], b, keys[b], runs, parameters, weights) for b in (0, 1)]

    size = max(experiment.num_features for experiment in experiments.values())
    runs = min(max(samples // 2, _MIN_SELECTION), _MEMORY_FLOATS // size)
    candidates: list[tuple[int, Attack]] = []
    for p, experiment in experiments.items():
        chosen = attacks.choose(
            sample("select", p, scale, runs), experiment.known, samples, significance, claim.dp_delta
        )
        candidates += [(p, attack) for attack in chosen]
    position, attack = max(candidates, key=lambda candidate: candidate[1].preference)
    out, inside = (attack.hits(raw) for raw in sample("test", position, scale, samples, attack.weights))
    bound = attacks.lower_bound(inside, out, significance, claim.dp_delta)
    power, warning = math.inf, None
    if math.isfinite(claim.epsilon):
        twice = sample("power", position, claim.doubled_scale, runs)
        power = attacks.power(twice, experiments[position].known, samples, significance, claim.dp_delta)
        if power <= claim.epsilon:
            warning = (
                f"{samples} samples cannot tell epsilon={claim.epsilon:g} from {2 * claim.epsilon:g}, whose bound is "
                f"expected to be {power:.2f}. Pass more samples, a shorter horizon or fewer episodes."
            )
    return AuditResult(
        privatizer=claim.privatizer.name,
        calibration=claim.calibration,
        epsilon_claimed=claim.epsilon,
        epsilon_lower_bound=bound,
        confidence=confidence,
        samples=samples,
        dp_delta=claim.dp_delta,
        verdict="violated" if bound > claim.epsilon else "consistent",
        epsilon_accounted=claim.accounted(scale),
        position=position,
        score=attack.score,
        power_bound=power,
        power_warning=warning,
    )
