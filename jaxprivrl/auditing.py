"""Empirical lower bounds on epsilon: the real code, run many times on two neighbouring inputs.

An audit has three samples that share no key. The first fits what must be learned, the second fixes the position of the
changed user, the score and its threshold, the third counts how often each input exceeds that one threshold. The bound
is Clopper-Pearson on the third sample alone, so its confidence statement holds whatever the first two have found.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from jaxprivrl import _validate, accounting, noise, simulation
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.accounting import Problem
from jaxprivrl.learners import LEARNERS, Hyperparameters, LearnerFactory, default_learning_rate
from jaxprivrl.mdp import MDP, Counts, Shape
from jaxprivrl.postprocess import DEFAULTS, POSTPROCESSORS, compose
from jaxprivrl.precision import Mechanism, blt_parameters, honaker_variance, mechanism
from jaxprivrl.privatizers import PRIVATIZERS, NoiseParameters, Privatizer, PrivatizerFactory

Array = jax.Array
Key = jax.Array
Draw = Callable[[Key, int, int, float, np.ndarray | None], np.ndarray]  # key, input, runs, noise scale, weights

MAX_EPISODES = 64  # a central audit replays whole streams of releases
_LOCAL_EPISODES = 2  # reports are independent; two of them show noise that is shared between users
_MAX_SELECTION = 200_000  # runs of each input whose features are held in memory
_BATCH_FLOATS = 2**18
_BUFFER_FLOATS = 2**23
_GRID = 1e-3  # scores are rounded to this part of their spread, so that equal ones compare as equal
_PURPOSES = {"select": 0, "test": 1, "power": 2}


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
      privatizer: name of the mechanism whose claim was audited.
      calibration: how its noise was chosen.
      epsilon_claimed: the epsilon under test.
      epsilon_lower_bound: the true epsilon is at least this, with the stated confidence.
      confidence: probability that the bound is true, whatever the mechanism.
      samples: runs of each of the two inputs behind the bound.
      dp_delta: delta of the claim; 0 for a pure one.
      verdict: "consistent", or "violated" if the bound exceeds the claim.
      epsilon_accounted: what `accounting` says of the noise scale that was used.
      position: the changed user, from 1.
      score: "exact" (log-likelihood ratio of the mechanism as documented) or "learned" (on a separate sample).
      power_bound: the bound to expect if the true epsilon were twice the claim.
      power_warning: set if `power_bound` does not exceed the claim: "consistent" then says little.
    """

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


class Claim(NamedTuple):
    """A checked claim with the noise that is to keep it.

    Attributes:
      privatizer, calibration: names.
      mechanism: what accounting knows of it.
      epsilon: the claim; inf for no noise.
      dp_delta: 0 for a pure claim.
      noise_scale: of one draw, before any multiplier.
      doubled_scale: of a mechanism whose epsilon is twice the claim; 0 if the claim is inf.
      error: tables for the Release.
    """

    privatizer: str
    calibration: str
    mechanism: Mechanism
    epsilon: float
    dp_delta: float
    noise_scale: float
    doubled_scale: float
    error: Counts


class Attack(NamedTuple):
    """A fixed test of "input 1 rather than input 0": score = features . weights, rounded to a grid, >= threshold."""

    position: int
    score: str
    weights: np.ndarray
    grid: float
    threshold: int
    bound: float  # on the sample that chose it: no confidence statement


class Views(NamedTuple):
    """Linear views of a stream of releases r_1..r_K, and what they hold without noise under either input.

    View v is r_i - r_j with (i, j) = pairs[v], j = 0 meaning zero. Features of a stream: for each k the sum over the
    changed cells c of sign_c (r_kc - middle_kc), then for each view sum_c |y_c - low_vc| - |y_c - high_vc|. Every
    exact log-likelihood ratio of the package is linear in them: Gaussian and bits in the first, Laplace in the second.
    """

    left: Array  # i32[V]
    right: Array  # i32[V]
    low: Array  # f32[V, C]
    high: Array  # f32[V, C]
    middle: Array  # f32[K, C]
    sign: Array  # f32[C]


def audit(
    privatizer: str,
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
    factory: PrivatizerFactory | None = None,
) -> AuditResult:
    """Bounds the epsilon of a privatizer from below by running it on two worst-case neighbouring inputs.

    One user of a stream of episodes is replaced by one whose cells differ at every step, with costs 1; all others stay.
    The whole stream of releases (local: all reports) is scored by the exact log-likelihood ratio of the mechanism, and
    by a linear score learned on a separate sample, which sees what a faulty implementation leaks elsewhere.

    Args:
      privatizer: name in PRIVATIZERS: whose claim, noise scale and likelihood ratio.
      problem: sizes; central mechanisms replay all of num_episodes, at most MAX_EPISODES.
      epsilon: the claim; > 0, inf for none.
      dp_delta: of an approximate claim.
      target: "pure", "approximate" or None for the mechanism's own.
      calibration: how the noise scale is chosen (see `accounting`).
      noise_multiplier: multiplies the noise that is used, for controls.
      samples: runs of each input behind the bound; up to half as many more per position choose the attack.
      position: the changed user, from 1; None tries every one on the separate sample.
      seed: of all randomness.
      confidence: of the bound, in (0.5, 1).
      factory: the code under test, if it is not PRIVATIZERS[privatizer].

    Returns:
      AuditResult. For an honest mechanism "violated" has probability at most 1 - confidence.

    Reference: Jagielski, Ullman and Oprea, NeurIPS 2020, for bounds from counts.
    """
    _validate.one_of("privatizer", privatizer, PRIVATIZERS)
    _check_run(samples, confidence, noise_multiplier)
    claim = _claim(privatizer, problem, epsilon, dp_delta, target, calibration)
    K, positions = _positions(claim.mechanism, problem, position)
    shape = _shape(problem)
    inputs = _inputs(shape)
    code = factory or PRIVATIZERS[privatizer]
    weight = problem.horizon if claim.mechanism.stream == "sampled" else 1

    def draw_at(p: int) -> Draw:
        streams, cells, views = _streams(inputs, shape.families, K, p, weight)

        def draw(key: Key, which: int, runs: int, scale: float, weights: np.ndarray | None) -> np.ndarray:
            W = jnp.eye(K + views.left.shape[0]) if weights is None else jnp.asarray(weights, jnp.float32)[:, None]
            parameters = NoiseParameters(jnp.float32(scale), claim.error)
            return _batched(
                _released, (code, shape, cells), key, runs, _width(shape), (streams[which], parameters, views, W)
            )  # fmt: skip

        return draw

    known = {p: _exact_weights(claim.mechanism, problem.num_episodes, K, p) for p in positions}
    return _audit(
        claim, problem, {p: draw_at(p) for p in positions}, known, noise_multiplier, samples, seed, confidence
    )


def audit_end_to_end(
    learner: str,
    privatizer: str,
    mdp: MDP,
    epsilon: float,
    *,
    num_episodes: int,
    dp_delta: float = 1e-5,
    target: str | None = None,
    calibration: str = "tight",
    families: int = 3,
    homogeneous: bool = False,
    bonus_scale: float = 1.0,
    learning_rate: float | None = None,
    failure_prob: float = 0.1,
    noise_multiplier: float = 1.0,
    samples: int = 20_000,
    position: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
    factory: PrivatizerFactory | None = None,
    learner_factory: LearnerFactory | None = None,
) -> AuditResult:
    """Bounds the epsilon of all that other users see: the policies of every episode after the replaced user's.

    Whole runs are played, learner, users and privatizer, with the counts of one user replaced. Policies before that
    episode do not depend on it. No likelihood ratio is known here: the score is a linear discriminant of the policies,
    learned on a separate sample. What leaks around the privatizer shows here; what a learner hides does not.

    Args:
      learner: name in LEARNERS; it runs with the post-processing that its paper says.
      privatizer: name in PRIVATIZERS: whose claim and noise scale.
      mdp: a small MDP.
      epsilon, dp_delta, target, calibration, noise_multiplier: as in `audit`.
      num_episodes: K, at most MAX_EPISODES.
      families, homogeneous: which counts are released.
      bonus_scale, learning_rate, failure_prob: of the learner; any value keeps the claim.
      samples: runs of each input behind the bound; up to half as many more choose the score.
      position: the changed user, from 1.
      seed, confidence: as in `audit`.
      factory: the privatizer's code under test, if it is not PRIVATIZERS[privatizer].
      learner_factory: the learner's code under test, if it is not LEARNERS[learner].

    Returns:
      AuditResult with score "learned".
    """
    _validate.one_of("learner", learner, LEARNERS)
    _validate.one_of("privatizer", privatizer, PRIVATIZERS)
    _check_run(samples, confidence, noise_multiplier)
    H, S, A = mdp.shape
    if homogeneous and not mdp_lib.is_homogeneous(mdp):
        raise ValueError("The stages of this MDP differ, so counts cannot be pooled over h. Drop homogeneous.")
    problem = Problem(H, S, A, num_episodes, homogeneous, families)
    claim = _claim(privatizer, problem, epsilon, dp_delta, target, calibration)
    K, _ = _positions(claim.mechanism, problem, position, whole=True)
    shape = _shape(problem)
    inputs = _inputs(shape)
    rate = default_learning_rate(H, A, K) if learning_rate is None else learning_rate
    hyper = Hyperparameters(*(jnp.float32(x) for x in (K, bonus_scale, rate, failure_prob)))
    dynamics = mdp_lib.prepare(mdp)
    code = (
        learner_factory or LEARNERS[learner],
        POSTPROCESSORS[DEFAULTS.get(learner, "none")],
        factory or PRIVATIZERS[privatizer],
    )
    size = (K - position + 1) * H * S * A

    def draw(key: Key, which: int, runs: int, scale: float, weights: np.ndarray | None) -> np.ndarray:
        W = jnp.eye(size) if weights is None else jnp.asarray(weights, jnp.float32)[:, None]
        parameters = NoiseParameters(jnp.float32(scale), claim.error)
        return _batched(
            _policies, (code, shape, K, position), key, runs, _width(shape),
            (inputs[which], parameters, hyper, dynamics, W),
        )  # fmt: skip

    return _audit(claim, problem, {position: draw}, {position: None}, noise_multiplier, samples, seed, confidence)


def _check_run(samples: int, confidence: float, noise_multiplier: float) -> None:
    if samples != int(samples) or samples < 1000:
        raise ValueError(f"Expected samples={samples} >= 1000. Fewer bound nothing; pass samples=100000.")
    if not 0.5 < confidence < 1.0:
        raise ValueError(f"Expected 0.5 < confidence={confidence} < 1. Pass a probability such as confidence=0.95.")
    _validate.finite_at_least("noise_multiplier", noise_multiplier, 0.0, "Use 1 for the noise as calibrated.")


def _claim(
    privatizer: str, problem: Problem, epsilon: float, dp_delta: float, target: str | None, calibration: str
) -> Claim:
    """Asks accounting for the noise of a claim, and for that of twice the claim."""
    chosen = accounting.calibrate(
        privatizer, problem, epsilon, dp_delta=dp_delta, target=target, calibration=calibration
    )
    claimed, nominal = chosen.guarantee.nominal_epsilon or math.inf, chosen.guarantee.nominal_dp_delta
    doubled = accounting.noise_scale(privatizer, problem, 2 * claimed, dp_delta=nominal)
    error = Counts(*(jnp.asarray(table, jnp.float32) for table in chosen.precision))
    return Claim(
        privatizer, calibration, mechanism(privatizer), claimed, nominal or 0.0, chosen.noise_scale, doubled, error
    )


def _positions(mech: Mechanism, problem: Problem, position: int | None, whole: bool = False) -> tuple[int, list[int]]:
    """Episodes to run, and the positions to try."""
    K = problem.num_episodes
    if position is not None and not 1 <= position <= min(K, MAX_EPISODES):
        raise ValueError(f"Expected 1 <= position={position} <= {min(K, MAX_EPISODES)}. Users are counted from 1.")
    if mech.trust != "JDP" and not whole:
        K = min(K, max(_LOCAL_EPISODES, position or 0))
    if K > MAX_EPISODES:
        raise ValueError(
            f"Expected num_episodes={K} <= {MAX_EPISODES}, as an audit replays whole streams. Pass fewer episodes."
        )
    return K, list(range(1, K + 1)) if position is None else [position]


def _shape(problem: Problem) -> Shape:
    H, S, A, K, homogeneous, families = problem
    return Shape(H, S, A, 1 if homogeneous else H, families, K)


def _width(shape: Shape) -> int:
    """Counters of one run."""
    return shape.num_stages * shape.num_states * shape.num_actions * (2 + shape.num_states)


def _inputs(shape: Shape) -> tuple[Counts, Counts]:
    """Counts of two users whose cells differ at every step, with costs 1: the worst pair for either stage axis."""
    S, A = shape.num_states, shape.num_actions
    if S * A < 2:
        raise ValueError(f"Expected S={S} times A={A} to be at least 2: neighbours must differ. Pass more actions.")

    def user(s: int, a: int) -> Counts:
        at = jnp.full((shape.horizon,), s, jnp.int32)
        trajectory = simulation.Trajectory(at, jnp.full_like(at, a), jnp.ones(shape.horizon), at)
        return simulation.tally(shape, trajectory)

    return user(0, 0), (user(0, 1) if A > 1 else user(1, 0))


def _streams(
    inputs: tuple[Counts, Counts], families: int, K: int, position: int, weight: int
) -> tuple[list[Counts], tuple[tuple[int, ...], ...], Views]:
    """Two streams of K users that differ at `position`, the cells that differ, and the views of their releases."""
    first, second = (jax.tree.map(np.asarray, user) for user in inputs)

    def stream(changed: Counts) -> Counts:
        return jax.tree.map(lambda a, b: np.stack([b if k == position else a for k in range(1, K + 1)]), first, changed)

    streams = [stream(first), stream(second)]
    cells = tuple(tuple(np.flatnonzero(a != b).tolist()) for a, b in zip(first, second, strict=True))
    cells = cells if families == 3 else ((), *cells[1:])  # derived visits are post-processing
    kept = [np.concatenate([x.reshape(K, -1)[:, list(c)] for x, c in zip(s, cells, strict=True)], 1) for s in streams]
    zero, one = (weight * np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, 0)]) for x in kept)
    left, right = np.array(_pairs(K), np.int32).T
    low, high, middle, sign = zero[left] - zero[right], one[left] - one[right], (zero + one)[1:] / 2, (one - zero)[-1]
    floats = (jnp.asarray(x, jnp.float32) for x in (low, high, middle, np.sign(sign)))
    return streams, cells, Views(jnp.asarray(left), jnp.asarray(right), *floats)


def _pairs(K: int) -> list[tuple[int, int]]:
    """Views (i, j): every release, every difference of two consecutive ones, every node of the binary tree."""
    return sorted({(k, j) for k in range(1, K + 1) for j in (0, k - 1, k & (k - 1))})


def _exact_weights(mech: Mechanism, num_episodes: int, K: int, position: int) -> np.ndarray:
    """Weights of the features whose sum is the log-likelihood ratio of the mechanism, up to a positive factor.

    Laplace: sum of |y - low| - |y - high| over the nodes (or the one report) that hold the user. Gaussian, whose
    releases carry the noise B z: the shift m of the releases, whitened: m' (B B')^-1 r. Bits: linear in the report.
    """
    linear, pairs = np.zeros(K), _pairs(K)
    clipped = np.zeros(len(pairs))
    if mech.noise == "gaussian":
        B = noise_map(mech.stream, num_episodes, K)
        linear = np.linalg.solve(B @ B.T, (np.arange(1, K + 1) >= position).astype(float))
    elif mech.noise == "laplace":
        for k in range(1, K + 1):
            j = k & (k - 1) if mech.stream == "tree" else k - 1
            clipped[pairs.index((k, j))] = float(j < position <= k)
    else:
        linear[position - 1 : position] += 1.0
        linear[position - 2 : position - 1] -= 1.0 if position > 1 else 0.0
    return np.concatenate([linear, clipped])


def noise_map(stream: str, num_episodes: int, K: int) -> np.ndarray:
    """B, f64[K, draws]: the noise of the first K releases is B z with independent unit draws z.

    Args:
      stream: "tree", "honaker", "toeplitz", "blt" or "local", as in `precision.Mechanism`.
      num_episodes: what the mechanism was made for; it picks the strategy of "blt".
      K: number of releases.
    """
    _validate.one_of("stream", stream, ("tree", "honaker", "toeplitz", "blt", "local"))
    if stream == "local":
        return np.tri(K)
    if stream in ("tree", "honaker"):
        names = [(end, j) for end in range(1, K + 1) for j in range(end.bit_length()) if end % 2**j == 0]
        unit = dict(zip(names, np.eye(len(names)), strict=True))  # the node of 2^j episodes that ends with `end`

        def estimate(end: int, j: int) -> np.ndarray:
            if stream == "tree" or j == 0:
                return unit[end, j]
            own = honaker_variance(j)  # weight of the node itself in the inverse-variance mean
            return own * unit[end, j] + (1 - own) * (estimate(end, j - 1) + estimate(end - 2 ** (j - 1), j - 1))

        return np.array(
            [sum(estimate(k >> j << j, j) for j in range(k.bit_length()) if k >> j & 1) for k in range(1, K + 1)]
        )
    lag = np.arange(1, K)
    if stream == "toeplitz":
        c = np.cumprod(np.append(1.0, (2 * lag - 1) / (2 * lag)))
    else:
        decay, scale = map(np.asarray, blt_parameters(num_episodes))
        c = np.append(1.0, (scale * decay ** (lag[:, None] - 1)).sum(1))
    strategy = sum(c[k] * np.eye(K, k=-k) for k in range(K))
    return strategy if stream == "toeplitz" else np.tri(K) @ np.linalg.inv(strategy)


def _released(code: PrivatizerFactory, shape: Shape, cells: tuple, key: Key, arguments: tuple) -> Array:
    """One run of a privatizer over a stream: features of the changed cells of its releases, times the weights."""
    stream, parameters, views, weights = arguments
    privatizer: Privatizer = code(shape, parameters)
    K = stream.visits.shape[0]

    def step(state: Any, now: tuple[Key, Counts]) -> tuple[Any, Array]:
        state, release = privatizer.step(now[0], state, now[1])
        seen = [x.reshape(-1)[np.array(c, int)] for x, c in zip(release.counts, cells, strict=True) if c]
        return state, jnp.concatenate(seen)

    start, _ = privatizer.init(shape.zero_counts())
    keys = simulation.episode_keys(key, jnp.arange(K))
    r = jax.lax.scan(step, start, (keys, stream), unroll=K <= 4)[1]
    linear = jnp.sum((r - views.middle) * views.sign[None], 1)
    padded = jnp.concatenate([jnp.zeros_like(r[:1]), r])
    y = padded[views.left] - padded[views.right]
    clipped = jnp.sum(jnp.abs(y - views.low) - jnp.abs(y - views.high), 1)
    return jnp.sum(jnp.concatenate([linear, clipped])[:, None] * weights, 0)


def _policies(code: tuple, shape: Shape, K: int, position: int, key: Key, arguments: tuple) -> Array:
    """One whole run with one user replaced: the policies of all later episodes, flat, times the weights."""
    user, parameters, hyper, dynamics, weights = arguments
    make_learner, postprocess, make_privatizer = code
    learner = compose(shape, postprocess, make_learner(shape, hyper))
    privatizer = make_privatizer(shape, parameters)
    keys = jax.tree.map(lambda k: simulation.episode_keys(k, jnp.arange(K + 1)), simulation.streams(key))
    start, release = privatizer.init(shape.zero_counts())

    def step(carry: tuple, now: tuple[simulation.Streams, Array]) -> tuple[tuple, Array]:
        learner_state, privatizer_state, release = carry
        streams, k = now
        learner_state, policy = learner.step(streams.learner, learner_state, release)
        counts = simulation.tally(shape, simulation.play(streams.environment, dynamics, policy)[0])
        counts = jax.tree.map(lambda played, replaced: jnp.where(k == position, replaced, played), counts, user)
        privatizer_state, release = privatizer.step(streams.noise, privatizer_state, counts)
        return (learner_state, privatizer_state, release), policy

    played = jax.tree.map(lambda k: k[:K], keys)
    carry, policies = jax.lax.scan(step, (learner.init(), start, release), (played, jnp.arange(1, K + 1)))
    last = learner.step(keys.learner[K], carry[0], carry[2])[1]  # what user K + 1 would be told
    seen = jnp.concatenate([policies, last[None]])[position:]
    return jnp.sum(seen.reshape(-1)[:, None] * weights, 0)


def _batched(one: Callable, static: tuple, key: Key, runs: int, width: int, arguments: tuple) -> np.ndarray:
    """Independent runs of `one(*static, key, arguments) -> f32[n]`, f32[runs, n], in batches that bound the memory."""
    batch = int(np.clip(_BATCH_FLOATS // width, 64, 4096))
    batches = int(np.clip(_BUFFER_FLOATS // (batch * arguments[-1].shape[1]), 1, 64))
    parts = []
    for i, start in enumerate(range(0, runs, batches * batch)):
        count = min(batches, math.ceil((runs - start) / batch))
        part = _program(one, static, batches, batch, jax.random.fold_in(key, i), np.int32(count), arguments)
        parts.append(np.asarray(part)[:count].reshape(count * batch, -1))
    return np.concatenate(parts)[:runs]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _program(one: Callable, static: tuple, batches: int, batch: int, key: Key, count: Array, arguments: tuple) -> Array:
    """The first `count` of f32[batches, batch, n]; one compilation whatever the number of runs."""
    keys = jax.random.split(key, batches)
    lanes = jax.vmap(functools.partial(one, *static), in_axes=(0, None))

    def body(i: Array, out: Array) -> Array:
        return out.at[i].set(lanes(jax.random.split(keys[i], batch), arguments))

    return jax.lax.fori_loop(0, count, body, jnp.zeros((batches, batch, arguments[-1].shape[1])))


def _audit(
    claim: Claim,
    problem: Problem,
    draws: dict[int, Draw],
    known: dict[int, np.ndarray | None],
    noise_multiplier: float,
    samples: int,
    seed: int,
    confidence: float,
) -> AuditResult:
    """Chooses an attack on one sample and bounds epsilon by it on another."""
    root, significance = noise.key(seed), 1.0 - confidence
    runs = min(samples // 2, _MAX_SELECTION)
    scale = claim.noise_scale * noise_multiplier

    def key(purpose: str, position: int, which: int) -> Key:
        return jax.random.fold_in(root, (_PURPOSES[purpose] * (MAX_EPISODES + 1) + position) * 2 + which)

    def features(purpose: str, p: int, scale: float) -> list[np.ndarray]:
        return [draws[p](key(purpose, p, which), which, runs, scale, None) for which in (0, 1)]

    attacks = [
        attack
        for p in draws
        for attack in _attacks(features("select", p, scale), known[p], p, significance, claim.dp_delta)
    ]
    best = max(attacks, key=lambda attack: attack.bound)
    hits = [
        _scores(draws[best.position](key("test", best.position, which), which, samples, scale, best.weights), best)
        >= best.threshold
        for which in (0, 1)
    ]
    bound = _clopper_pearson(hits[1], hits[0], significance, claim.dp_delta)
    power = math.inf
    if math.isfinite(claim.epsilon):
        twice = features("power", best.position, claim.doubled_scale)
        power = _power(twice, known[best.position], samples, significance, claim.dp_delta)
    warning = None
    if math.isfinite(claim.epsilon) and power <= claim.epsilon:
        warning = (
            f"{samples} samples cannot tell epsilon={claim.epsilon:g} from {2 * claim.epsilon:g}: the latter would give a "
            f"bound of about {power:.2f}. Pass more samples, or a smaller horizon or fewer episodes."
        )
    return AuditResult(
        privatizer=claim.privatizer,
        calibration=claim.calibration,
        epsilon_claimed=claim.epsilon,
        epsilon_lower_bound=bound,
        confidence=confidence,
        samples=samples,
        dp_delta=claim.dp_delta,
        verdict="violated" if bound > claim.epsilon else "consistent",
        epsilon_accounted=_accounted(claim, problem, scale),
        position=best.position,
        score=best.score,
        power_bound=power,
        power_warning=warning,
    )


def _accounted(claim: Claim, problem: Problem, scale: float) -> float:
    """The epsilon that accounting gives a noise scale, in the form of the claim."""
    deltas = (claim.dp_delta,) if claim.dp_delta else ()
    result = accounting.guarantee(claim.privatizer, problem, scale, dp_deltas=deltas)
    return result.epsilon_at_delta[claim.dp_delta] if claim.dp_delta else result.epsilon_pure


def _attacks(
    features: list[np.ndarray], known: np.ndarray | None, position: int, significance: float, dp_delta: float
) -> Iterator[Attack]:
    """The exact score, if there is one, and the learned one; each with the threshold that bounds best.

    The first half of the sample fits, the second half chooses.
    """
    half = len(features[0]) // 2
    learned = _discriminant(features[0][:half], features[1][:half])
    for name, weights in (("exact", known), ("learned", learned)):
        if weights is None:
            continue
        raw = [np.asarray(x[half:] @ weights.astype(np.float32)) for x in features]
        grid = _GRID * float(np.std(np.concatenate(raw))) or 1.0
        attack = Attack(position, name, weights, grid, 0, 0.0)
        out, inside = (np.sort(_scores(x, attack)) for x in raw)
        thresholds = _thresholds(np.sort(np.concatenate([out, inside])))
        below, above = np.searchsorted(inside, thresholds), len(out) - np.searchsorted(out, thresholds)
        bounds = _bounds(below, above, len(out), significance, dp_delta)
        i = int(np.argmax(bounds))
        yield attack._replace(threshold=int(thresholds[i]), bound=float(bounds[i]))


def _power(
    features: list[np.ndarray], known: np.ndarray | None, samples: int, significance: float, dp_delta: float
) -> float:
    """Bound to expect from `samples` runs: attacks chosen on one half of a sample, rates from the other half."""
    half = len(features[0]) // 2
    expected = 0.0
    for attack in _attacks(features, known, 0, significance, dp_delta):
        out, inside = (
            _scores(x[:half] @ attack.weights.astype(np.float32), attack) >= attack.threshold for x in features
        )
        below, above = (samples * (float(np.sum(x)) + 0.5) / (half + 1) for x in (~inside, out))
        expected = max(expected, float(_bounds(np.array(below), np.array(above), samples, significance, dp_delta)))
    return expected


def _scores(raw: np.ndarray, attack: Attack) -> np.ndarray:
    """Rounded scores, i64[runs], of f32[runs] or f32[runs, 1]."""
    return np.rint(raw.reshape(-1) / attack.grid).astype(np.int64)


def _discriminant(out: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Fisher's linear discriminant of two samples f32[n, F] in float64; a direction without noise gets a huge weight."""
    x, y = out.astype(np.float64), inside.astype(np.float64)
    spread = np.sqrt((x.var(0) + y.var(0)) / 2 + (x.mean(0) - y.mean(0)) ** 2 / 4)
    spread = np.where(spread > 0, spread, 1.0)
    x, y = x / spread, y / spread
    within = (np.atleast_2d(np.cov(x.T)) + np.atleast_2d(np.cov(y.T))) / 2
    return np.linalg.solve(within + 1e-6 * np.eye(len(within)), y.mean(0) - x.mean(0)) / spread


def _thresholds(pooled: np.ndarray) -> np.ndarray:
    """A few hundred of the sorted scores, dense in both tails."""
    steps = np.geomspace(1, len(pooled), 300).astype(int)
    return np.unique(np.concatenate([pooled[steps - 1], pooled[-steps]]))


def _bounds(below: np.ndarray, above: np.ndarray, n: int, significance: float, dp_delta: float) -> np.ndarray:
    """Clopper-Pearson bounds on epsilon from misses of input 1 and false alarms of input 0 among n runs of each."""
    fnr, fpr = (special.betaincinv(k + 1.0, np.maximum(n - k, 1e-9), 1 - significance / 2) for k in (below, above))
    with np.errstate(divide="ignore"):
        ratios = [
            np.log(np.maximum(1 - miss - dp_delta, 0.0)) - np.log(alarm) for miss, alarm in ((fnr, fpr), (fpr, fnr))
        ]
    return np.maximum(np.maximum(*ratios), 0.0)


def _clopper_pearson(inside: np.ndarray, out: np.ndarray, significance: float, dp_delta: float) -> float:
    """The bound that counts, at a threshold that was fixed before: jax-privacy's, on hits f[runs] of either input."""
    from jax_privacy import auditing

    auditor = auditing.CanaryScoreAuditor(inside.astype(float), out.astype(float))
    fixed = auditing.Explicit(0.5)
    return float(auditor.epsilon_clopper_pearson(significance, dp_delta, one_sided=False, threshold_strategy=fixed))
