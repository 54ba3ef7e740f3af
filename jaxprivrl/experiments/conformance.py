"""Does an object keep its protocol? Checks of mechanisms, learners, schedules and environments, one's own included.

Each check is a plain function: it takes the object, looks it up in no registry, needs no test framework, and raises
AssertionError with a sentence about the first thing that is wrong; what the object itself raises is passed on. A test
of one's own mechanism is one line, `check_privatizer(my_mechanism)`. Keys are fixed, so that a verdict is the same each
time; at a random key an honest object would fail with a probability below 1 in 500, nearly all of it the audit's.
"""

import contextlib
import copy
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxprivrl import mdp as mdp_lib
from jaxprivrl import parameters as parameters_lib
from jaxprivrl.audit.audit import audit
from jaxprivrl.engine import episodes
from jaxprivrl.environments import Environment
from jaxprivrl.environments.base import Built
from jaxprivrl.experiments import trials
from jaxprivrl.experiments.trials import DP_DELTA
from jaxprivrl.learners import POSTPROCESSORS, Info, Learner
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.privacy import accounting
from jaxprivrl.privatizers import Privatizer
from jaxprivrl.privatizers.base import Release
from jaxprivrl.privatizers.tree import central_laplace
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import SCHEDULES, ScheduleKind, schedule

_EPSILONS = (5.0, 50.0, 500.0)
_USERS = 12
_LANES = 2000
_CLOSE = 1e-4  # of numbers that only the order of float32 operations may change
_UNLIKELY = 1e-7  # p-value below which two samples differ, of about a hundred that are compared
_BY_STEP = Problem(2, 3, 2, _USERS)
_POOLED = _BY_STEP.replace(homogeneous=True, families=2, schedule=SCHEDULES["equal"](count=4))
_AUDITED = Problem(1, 2, 2, 3, families=2)  # the shortest likelihood ratios: most power


def check_privatizer(privatizer: Privatizer, *, samples: int = 20_000) -> None:
    """Checks a mechanism by itself, in a batch, and against what accounting says of it.

      object  hashed by value; scale and guarantee are inverse, and epsilon=inf needs no noise
      start   exact zeros, and no std
      step    keeps structure, shapes and types, counts users and releases, is pure, the same with and without jit, and
              in a lane of a batch what it is alone
      noise   follows the key, and nothing else; with none, each release is the true counts
      law     mean 0 and the std that is stated, finite; absorb(m) has the law of m times absorb(1)
      claim   not refuted by an audit of epsilon=1 at a confidence of 99.9 %

    It runs on counts by step, and, unless accounting refuses that, on pooled ones of two families on a schedule.

    Args:
      privatizer: the mechanism.
      samples: of the audit; more tell smaller violations.
    """
    who = f"Privatizer '{privatizer.name}'"
    _check_by_value(who, privatizer, privatizer.report, privatizer.law, privatizer.strategy)
    _check_accounting(who, privatizer)
    _check_runs(who, privatizer, _BY_STEP)
    try:
        trials.numbers(privatizer, _POOLED, 1.0)
    except ValueError:
        pass
    else:
        _check_runs(who, privatizer, _POOLED)
    _check_without_jit(who, privatizer)
    _check_law(who, privatizer)
    if privatizer.private:
        found = audit(privatizer, _AUDITED, 1.0, dp_delta=1e-2, samples=samples, confidence=0.999)
        _check(
            found.verdict == "consistent",
            f"{who} claims epsilon=1, and an audit finds {found.epsilon_lower_bound:.3g} or more at user "
            f"{found.position} with a confidence of 99.9 %; expected no more than the claim.",
        )


def check_learner(learner: Learner) -> None:
    """Checks a learner on releases with little, much and absurd noise, by step and pooled.

    object  hashed by value; parameters have different names and defaults that pass their own checks; postprocess and
            the reductions of its metrics are known
    step    keeps structure, shapes and types of its state, is pure, the same with and without jit, and in a lane of a
            batch what it is alone
    plan    rows of the policy are distributions, whatever the release; metrics are finite numbers f32[]
    """
    who = f"Learner '{learner.name}'"
    _check_by_value(who, learner)
    names = ["num_episodes", *(p.name for p in learner.parameters)]
    _check(len(set(names)) == len(names), f"{who} has the numbers {names}; expected different names.")
    known = learner.postprocess in POSTPROCESSORS
    _check(known, f"{who} has postprocess='{learner.postprocess}'; expected one of {', '.join(POSTPROCESSORS)}.")
    for metric in learner.metrics:
        known = metric.reduce in ("sum", "mean", "last")
        _check(known, f"{who} reduces '{metric.name}' by '{metric.reduce}'; expected sum, mean or last.")
    for problem in (_BY_STEP, _POOLED):
        for p, value in zip(learner.parameters, learner.defaults(problem).values(), strict=True):
            try:
                kept = value if p.check is None else p.check(p.name, value)
            except ValueError as error:
                raise AssertionError(f"{who} refuses its own default: {error}") from error
            _check(math.isfinite(kept), f"{who} has the default {p.name}={value}; expected a finite number.")
        _check_plans(who, learner, problem)


def check_schedule(kind: ScheduleKind, **values: Any) -> None:
    """Checks a kind of schedule with these values of its parameters, for several numbers K of users from 1 on.

    Times are whole, increasing, end with user K, and depend on K alone; epochs, J and the smallest epoch follow from
    them; the text that names a schedule makes it again. A K that is too small for the values may be refused.
    """
    made = kind(**values)
    who, tried = f"Schedule '{made.text}'", 0
    _check_by_value(who, made)
    again = schedule(made.text, {kind.name: kind})
    _check(again == made, f"{who} makes '{again.text}' when its text is read; expected itself.")
    for K in (1, 2, 7, 64, 1000, 100_000):
        try:
            made.check(K)
        except ValueError:
            continue
        tried += 1
        times, epochs = made.times(K), made.epochs(K)
        told = f"{who} has {len(times)} releases of {K} users"
        _check(times[0] >= 1 and np.all(np.diff(times) > 0), f"{told}; expected increasing times from 1 on.")
        _check(times[-1] == K, f"{told}, the last after user {times[-1]}; expected user {K}, so that all are heard.")
        fresh = (
            list(times)
            if kind.times is None
            else list(itertools.islice(kind.times(K, **dict(made.values)), len(times)))
        )
        _check(fresh == list(times)[: len(fresh)], f"{told} and others when asked again; expected K to fix them.")
        facts = (made.num_releases(K), len(epochs), epochs.sum(), made.smallest_epoch(K))
        _check(facts == (len(times), len(times), K, epochs.min()), f"{told}; J, epochs and the least of them disagree.")
    _check(tried > 0, f"{who} is refused for every number of users up to 100,000; expected one that it is for.")


def check_environment(environment: Environment, horizon: int | None = None, **given: Any) -> None:
    """Checks an environment with these values of its parameters.

    It is the same when made again from its text; a horizon is kept or refused, Bernoulli costs are kept; its table is
    an MDP with costs in [0, 1], float32 on the device, whose optimal cost lies in [0, H] and goes back to native units;
    ends are absorbing and pay nothing; support, picture and names of actions fit.
    """
    who = f"Environment '{environment.name}'"
    text = parameters_lib.format(environment.name, given, environment.parameters)
    read = parameters_lib.parse(text, "environment", {environment.name: environment})[1]
    try:
        built, again = environment.make(horizon, **given), environment.make(horizon, bernoulli=True, **read)
    except ValueError as error:
        raise AssertionError(f"{who} cannot be made: {error}") from error
    H, S, A = built.shape
    same = all(np.array_equal(getattr(built, x), getattr(again, x)) for x in ("costs", "transitions", "initial"))
    same = same and (built.native, built.ends) == (again.native, again.ends)
    _check(same, f"{who} is another when made again from '{text}'; expected the same table.")
    _check(again.bernoulli and not built.bernoulli, f"{who} does not keep whether costs are Bernoulli draws.")
    _check(
        horizon in (None, H) and {len(built.costs), len(built.transitions)} <= {1, H} and built.native.steps == H,
        f"{who} has horizon {H}, tables of {len(built.costs)} and {len(built.transitions)} stages, and "
        f"{built.native.steps} steps in native units; expected one horizon, or tables of one stage.",
    )
    for end in built.ends:
        pays = built.native.offset + built.native.scale * built.costs[:, end]
        absorbing = np.all(built.transitions[:, end, :, end] == 1) and np.allclose(pays, 0, atol=1e-9)
        _check(absorbing, f"{who} calls state {end} an end, which is left or pays; expected neither.")
    if built.support is not None:
        inside = built.support.dtype == bool and not np.any((built.transitions > 0) & ~built.support)
        _check(inside, f"{who} has transitions outside its support; expected none.")
    if built.grid is not None:
        rows, columns, cells = built.grid.rows, built.grid.columns, np.asarray(built.grid.cells)
        fits = cells.shape == (S,) and np.all((cells >= -1) & (cells < rows * columns))
        _check(fits, f"{who} has states off its picture of {rows} x {columns}, or not one cell for each of {S} states.")
    if built.actions is not None:
        _check(len(built.actions) == A, f"{who} names {len(built.actions)} actions; expected {A}.")
    with contextlib.suppress(ValueError):  # three steps need little memory, unless the horizon is fixed
        built = environment.make(3, **given)
        _check(built.horizon == 3, f"{who} has horizon={built.horizon} when asked for 3; expected it, or a ValueError.")
    _check_planning(who, built)


# The pieces.


def _check(holds: Any, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def _check_by_value(who: str, thing: Any, *parts: Any) -> None:
    """Static arguments of jit are told apart by value."""
    copies = [(thing, copy.copy(thing)), *((part, copy.deepcopy(part)) for part in parts)]
    try:
        same = all(one == two and hash(one) == hash(two) for one, two in copies)
    except TypeError:  # a part that cannot be hashed
        same = False
    _check(same, f"{who} is not equal to a copy of itself, hashes included; expected frozen dataclasses of such parts.")


def _check_like(who: str, before: Any, after: Any) -> None:
    """Same structure, shapes and types."""
    one, two = str(jax.tree.structure(before)), str(jax.tree.structure(after))
    _check(one == two, f"{who} changes the structure of its state from {one} to {two}; expected it to stay.")
    for (path, x), y in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
        one, two = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (x, y))
        _check(one == two, f"{who} changes {jax.tree_util.keystr(path)} from {one} to {two} in a step; expected none.")


def _check_accounting(who: str, privatizer: Privatizer) -> None:
    """Every calibration gives noise, and the tight one what was asked for."""
    for calibration in ("tight", *dict(privatizer.calibrations)):
        scale = accounting.calibrate(privatizer, _BY_STEP, 1.0, calibration=calibration).noise_scale
        good = math.isfinite(scale) and (scale > 0 or not privatizer.private)
        _check(good, f"{who} has the noise scale {scale} for epsilon=1 ({calibration}); expected a positive number.")
    if not privatizer.private:
        pure = accounting.guarantee(privatizer, _BY_STEP, 1.0).epsilon_pure
        _check(math.isinf(pure), f"{who} protects nobody and is given epsilon={pure}; expected infinity.")
        return
    for dp_delta in (None, DP_DELTA) if privatizer.law.pure else (DP_DELTA,):
        epsilons = (0.5, *_EPSILONS, math.inf)
        scales = [accounting.noise_scale(privatizer, _BY_STEP, e, dp_delta=dp_delta) for e in epsilons]
        falling = scales[-1] == 0 and all(a > b for a, b in itertools.pairwise(scales))
        _check(falling, f"{who} has the scales {scales} at epsilons {epsilons}; expected less and less, and then 0.")
        for e, scale in zip(epsilons[:-1], scales, strict=False):
            found = accounting.guarantee(privatizer, _BY_STEP, scale, dp_deltas=(DP_DELTA,))
            holds = found.epsilon_pure if dp_delta is None else found.epsilon_at_delta[dp_delta]
            right = 0.98 * e <= holds <= e * (1 + 1e-6)
            asked = f"epsilon={e:g} (dp_delta={dp_delta})"
            _check(
                right, f"{who} has the noise scale {scale:g} for {asked}, which gives {holds:.6g}; expected no other."
            )


def _check_runs(who: str, privatizer: Privatizer, problem: Problem) -> None:
    """Start, structure, clocks, keys, and epsilon=inf, on one problem."""
    shape, users, key = problem.shape, trials.users(problem), random.key(0)
    numbers = trials.numbers(privatizer, problem, _EPSILONS[0])
    private = float(numbers.parameters.scale) > 0
    state, release = trials.start(privatizer, shape, numbers)
    _check(isinstance(release, Release), f"{who} shows a {type(release).__name__}; expected a Release.")
    sa = (shape.num_stages, shape.num_states, shape.num_actions)
    sizes = [x.shape for x in (*release.counts, *release.std, *release.error)]
    expected = [sa, sa, (*sa, shape.num_states), *[()] * 6]
    typed = all(x.dtype == jnp.float32 for x in (*release.counts, *release.std, *release.error))
    _check(typed and sizes == expected, f"{who} shows numbers of {sizes}; expected float32 of {expected}.")
    nothing = (*release.counts, *release.std, release.num_episodes, *state.clock, *jax.tree.leaves(state.cell))
    _check(not any(np.any(x) for x in nothing), f"{who} holds numbers before the first user; expected exact zeros.")
    step = functools.partial(trials.observe, privatizer, shape)
    after = jax.eval_shape(step, key, numbers, state, trials.row(users, 0))
    _check_like(who, (state, release), after)

    def run(key: Any, numbers: Any = numbers, users: Counts = users) -> tuple[Any, Any]:
        return trials.run(privatizer, shape, key, numbers, users)

    (states, releases), other = run(key), run(random.key(1))[1]
    ends, user = problem.schedule.times(_USERS), np.arange(1, _USERS + 1)
    made = np.searchsorted(ends, user, "right")
    held = np.append(0, ends)[made]
    clocks = zip((*states.clock, releases.num_episodes), (user, made, held, held), strict=True)
    counted = all(np.array_equal(x, y) for x, y in clocks)
    _check(counted, f"{who} does not count its users and releases; expected a release after users {ends.tolist()}.")
    same = trials.equal((states, releases), run(key))
    _check(same, f"{who} gives other numbers when run again; expected pure functions.")
    _check(trials.equal(releases.counts, other.counts) != private, f"{who} has noise that does not follow the key.")
    told = np.array([*releases.std, *releases.error])[:, made > 0]
    right = np.all(np.isfinite(told)) and np.all((told > 0) == private)
    _check(right, f"{who} states a std or error that is not finite, or is 0 beside noise, or is not 0 without it.")
    truth = trials.true_counts(problem, users, held)
    if privatizer.plain:
        others = trials.users(problem, 1)
        moved = run(key, users=others)[1].counts
        own = jax.tree.map(np.subtract, releases.counts, truth)
        theirs = jax.tree.map(np.subtract, moved, trials.true_counts(problem, others, held))
        same = trials.equal(own, theirs, _CLOSE)
        _check(same, f"{who} has noise that depends on the counts; expected counts plus noise.")
    quiet = run(key, trials.numbers(privatizer, problem, math.inf))[1]
    exact = trials.equal(quiet.counts, truth, 1e-6) and not any(np.any(x) for x in (*quiet.std, *quiet.error))
    _check(exact, f"{who} at epsilon=inf does not release the true counts, with a std and error of 0.")


def _check_without_jit(who: str, privatizer: Privatizer) -> None:
    """The same step with and without jit, in the middle of a run, where a block of noise starts if there are blocks."""
    shape, users, key = _BY_STEP.shape, trials.users(_BY_STEP), random.key(2)
    numbers = trials.numbers(privatizer, _BY_STEP, _EPSILONS[0])
    states, releases = trials.run(privatizer, shape, key, numbers, users)
    i = min(privatizer.strategy.block, _USERS - 1)
    with jax.disable_jit():
        key = jax.random.fold_in(key, i)
        plain = trials.observe(privatizer, shape, key, numbers, trials.row(states, i - 1), trials.row(users, i))
    same = trials.equal(plain, (trials.row(states, i), trials.row(releases, i)), _CLOSE)
    _check(same, f"{who} gives other numbers without jit; expected the same.")


def _check_law(who: str, privatizer: Privatizer) -> None:
    """Lanes, mean, std, noise in each count, and users absorbed at once, over many runs."""
    shape, users = _BY_STEP.shape, trials.users(_BY_STEP)
    numbers = trials.numbers(privatizer, _BY_STEP, _EPSILONS[0])
    keys = jax.vmap(random.key)(jnp.arange(_LANES))
    scales = numbers.parameters.scale * jnp.array([0.5, 1.0, 2.0])
    batch = trials.run_batch(privatizer, shape, keys, scales, numbers, users)
    for i, lane in itertools.product(range(3), (0, _LANES - 1)):
        mine = numbers._replace(parameters=numbers.parameters._replace(scale=scales[i]))
        last = trials.row(trials.run(privatizer, shape, keys[lane], mine, users)[1], -1)
        same = trials.equal(jax.tree.map(lambda x, i=i, lane=lane: x[i, ..., lane], batch), last.counts, _CLOSE)
        _check(same, f"{who} gives other numbers in a lane of a batch than alone; expected the same.")
    std = trials.run(privatizer, shape, keys[0], numbers, users)[1].std
    truth = trials.true_counts(_BY_STEP, users, np.array(_USERS))
    for family, x, true, stated in zip(Counts._fields, batch, truth, (float(s[-1]) for s in std), strict=True):
        noise = np.asarray(x[1], np.float64) - true[..., None]
        off = np.abs(noise.mean(-1)).max() * math.sqrt(_LANES)
        _check(off <= 7 * stated + 1e-3, f"{who} has noise on {family} with a mean that is not 0.")
        found = math.sqrt(np.mean(np.square(noise)))
        right = found <= 1.05 * stated + 1e-5 and (found >= 0.95 * stated or not privatizer.plain)
        _check(right, f"{who} states a std of {stated:.4g} on {family}, and {found:.4g} is measured.")
        silent = int(np.sum(noise.std(-1) <= 1e-6))
        _check(silent == 0 or not privatizer.private, f"{who} leaves {silent} counts of {family} without noise.")
    at_once, one_by_one = (trials.absorb(privatizer, shape, m, keys, numbers, users) for m in (True, False))
    for family, x, y in zip(Counts._fields, at_once, one_by_one, strict=True):
        one, two = (np.asarray(z, np.float64).reshape(_LANES, -1).T for z in (x, y))
        p = min(stats.ks_2samp(a, b, method="asymp").pvalue for a, b in zip(one, two, strict=True))
        ratio = one.var(1).sum() / max(two.var(1).sum(), 1e-9)
        same = p > _UNLIKELY and 0.85 < ratio < 1.15 if privatizer.private else trials.equal(one, two, _CLOSE)
        told = f"{family} of another law when users are absorbed at once ({ratio:.3g} of the variance, p={p:.1g})"
        _check(same, f"{who} has {told} than when they are one by one; expected the same.")


def _check_plans(who: str, learner: Learner, problem: Problem) -> None:
    """State and policy of a learner, on one problem; jit and lanes, by step."""
    shape, users = problem.shape, trials.users(problem)
    hyper = {"num_episodes": jnp.float32(_USERS)} | {n: jnp.float32(v) for n, v in learner.defaults(problem).items()}
    first: Any = learner.make(shape, hyper).init()
    runs: list[Any] = []
    for epsilon in (*_EPSILONS, 1e-6):
        numbers = trials.numbers(central_laplace, problem, epsilon)
        later = trials.run(central_laplace, shape, random.key(3), numbers, users)[1]
        before = trials.start(central_laplace, shape, numbers)[1]
        releases = [before, *(trials.row(later, i) for i in (0, 2, _USERS - 1))]
        made = jax.eval_shape(functools.partial(trials.plan, learner, shape), random.key(0), hyper, first, before)
        _check_like(who, first, made.state)
        _check_plan(who, problem, made)
        state = first
        for k, release in enumerate(releases):
            args = (jax.random.fold_in(random.key(len(runs)), k), hyper, state, release)
            out = trials.plan_alone(learner, shape, *args)
            policy = np.asarray(out.plan.policy)
            rows = np.all(policy >= 0) and np.allclose(policy.sum(-1), 1, rtol=1e-6, atol=0)
            told = f"after {int(release.num_episodes)} users at epsilon={epsilon:g}"
            _check(rows, f"{who} returns a policy with rows that are no distributions {told}; expected distributions.")
            finite = all(np.all(np.isfinite(x)) for x in jax.tree.leaves((out.state, out.metrics)))
            _check(finite, f"{who} has a state or a metric that is not finite {told}; expected numbers.")
            same = trials.equal(out, trials.plan_alone(learner, shape, *args))
            _check(same, f"{who} gives other numbers when run again; expected a pure step.")
            state = out.state
        runs.append((args, out))
    if problem.homogeneous:
        return
    with jax.disable_jit():
        plain = trials.plan(learner, shape, *runs[0][0])
    _check(trials.equal(plain, runs[0][1], _CLOSE), f"{who} gives other numbers without jit; expected the same.")
    *runs, _ = runs  # without the absurd noise
    lanes = trials.plan_lanes(learner, shape, *jax.tree.map(lambda *x: jnp.stack(x), *(args for args, _ in runs)))
    same = all(trials.equal(trials.row(lanes, i), alone, _CLOSE) for i, (_, alone) in enumerate(runs))
    _check(same, f"{who} gives other numbers in a lane of a batch than alone; expected the same.")


def _check_plan(who: str, problem: Problem, made: trials.Planned) -> None:
    """Kinds, shapes and types of what a step returns."""
    try:
        episodes.check_plan(problem.shape, made.plan)
    except (AssertionError, TypeError, ValueError) as error:
        raise AssertionError(f"{who} returns another kind of plan: {' '.join(str(error).split())}") from error
    scalars = all(x.shape == () and x.dtype == jnp.float32 for x in made.metrics)
    _check(scalars, f"{who} has the metrics {made.metrics}; expected f32[] each.")
    expected = (problem.horizon, problem.num_states)
    if isinstance(made.info, Info):
        found = made.info.values.shape
        _check(found == expected, f"{who} tells values of the shape {found}; expected {expected}.")


def _check_planning(who: str, built: Built) -> None:
    """Tables on the device, optimal values, and native units."""
    mdp, native, H = built.mdp, built.native, built.horizon
    single = all(x.dtype == jnp.float32 for x in mdp[:3])
    _check(single and mdp.shape == built.shape, f"{who} has an MDP of {mdp.shape}; expected float32 of {built.shape}.")
    mdp_lib.validate(mdp)
    best = float(np.asarray(built.initial) @ mdp_lib.solve(mdp).v[0])
    _check(-1e-6 <= best <= H + 1e-6, f"{who} has episodes of least cost {best:g}; expected 0 to {H}.")
    change = abs(native.total(best + 1.0) - native.total(best))
    agrees = native.scale != 0 and abs(change - native.loss(1.0)) <= 1e-9 * abs(native.scale) * (1 + H)
    _check(agrees, f"{who} has native units {native}; expected a scale that is not 0, and losses that follow it.")
