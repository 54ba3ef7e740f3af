"""A grid of runs by names and numbers, and what it stands for: here names become objects."""

import dataclasses
import hashlib
import itertools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxprivrl import _validate, environments
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.engine import run as engine
from jaxprivrl.experiments import memory, plugins
from jaxprivrl.learners import LEARNERS, POSTPROCESSORS, Learner
from jaxprivrl.mdp import MDP
from jaxprivrl.privacy import accounting
from jaxprivrl.privacy.accounting import Calibrated
from jaxprivrl.privatizers import PRIVATIZERS, Privatizer
from jaxprivrl.privatizers.base import parameters
from jaxprivrl.problem import Problem
from jaxprivrl.published import experiment as published
from jaxprivrl.schedules import schedule

PRECISIONS = ("worst_case", "time_varying")
REGRETS = ("expected", "realised")
_MAX_EPISODES = 2**31


@dataclasses.dataclass(frozen=True)
class SweepSpec:
    """A grid of runs by names and numbers. Every field is checked by `resolve`; run.json holds them all.

    Attributes:
      environment: name in ENVIRONMENTS with values of its parameters, or any label when an MDP is passed along.
      horizon: steps of an episode, where the environment leaves it open.
      bernoulli_costs: observed costs are Bernoulli draws of the means.
      mdp_hash: SHA-256 of the MDP's arrays; filled in, and checked if given.
      learner, privatizer: names in LEARNERS and PRIVATIZERS.
      releases: the schedule.
      epsilons: targets; ignored by mechanisms that protect nobody.
      seeds: number of seeds, from `seed_start` on.
      episodes: K; the mechanisms are calibrated for exactly as many.
      grid: values of the learner's declared parameters, each an axis: {"bonus_scale": (0.01, 0.1)}.
      calibration: tight, printed or published_code (see `accounting`).
      target: "pure" or "approximate"; None means the mechanism's default.
      dp_delta: delta of an approximate target, and of the epsilon reported beside a pure one.
      families: 3 released count families, or 2 with visits derived by summing.
      homogeneous: pool counts over h.
      centred_costs: count c - 1/2 in the place of c: a user moves less, so less noise is needed (see `sensitivity`).
      neighbours: "replace" or "add_remove".
      precision: "worst_case" (the paper's fixed E) or "time_varying" (the error at each release).
      postprocess: name in POSTPROCESSORS; None means what the learner's paper says.
      regret: "expected" or "realised"; None means the learner's own, expected unless it says otherwise.
      metrics: of the learner, recorded beside the regret.
      record_every: keep the cumulative regret of every so many episodes; None keeps about 200 of them.
      plugins: modules that register what the names mean; imported first.
    """

    environment: str = "river_swim"
    horizon: int | None = None
    bernoulli_costs: bool = False
    mdp_hash: str | None = None
    learner: str = "ucb_vi"
    privatizer: str = "central_laplace"
    releases: str = "every"
    epsilons: tuple[float, ...] = (1.0,)
    seeds: int = 20
    seed_start: int = 0
    episodes: int = 20_000
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    calibration: str = "tight"
    target: str | None = None
    dp_delta: float = 1e-5
    families: int = 3
    homogeneous: bool = False
    centred_costs: bool = False
    neighbours: str = "replace"
    precision: str = "worst_case"
    postprocess: str | None = None
    regret: str | None = None
    metrics: tuple[str, ...] = ()
    record_every: int | None = None
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = {k: tuple(v) if isinstance(v, (tuple, list)) else (v,) for k, v in self.grid.items()}
        object.__setattr__(self, "grid", values)
        for name in ("epsilons", "metrics", "plugins"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def replace(self, **changes: Any) -> "SweepSpec":
        """The spec with other values of some fields."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """All fields, as plain values; infinity stays a float."""
        return dataclasses.asdict(self) | {"grid": {k: list(v) for k, v in self.grid.items()}}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SweepSpec":
        """The inverse of `to_json`, also for what has been through JSON, where infinity is the string "inf"."""
        if not isinstance(fields, Mapping):
            raise ValueError(f"The spec is {_brief(fields)}; expected names of fields with their values.")
        kinds = {f.name: f.type for f in dataclasses.fields(cls)}
        for name, value in fields.items():
            _check_kind(_validate.one_of("field of a spec", name, kinds), value, kinds[name])
        values = dict(fields)
        if "epsilons" in values:
            values["epsilons"] = tuple(float(e) for e in values["epsilons"])
        if "grid" in values:
            values["grid"] = {k: tuple(float(x) for x in v) for k, v in values["grid"].items()}
        return cls(**values)


_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Raises unless a value read from a file is of the kind that a field has."""
    choices = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    plain = [k for k in choices if k in _KINDS]
    if value is None and type(None) in choices:
        return
    if typing.get_origin(kind) is tuple:
        good, wanted = isinstance(value, (list, tuple)), "a list"
    elif not plain:
        good, wanted = isinstance(value, Mapping), "names with lists of numbers"
    else:
        accepted = (int, float) if plain == [float] else tuple(plain)
        good = isinstance(value, accepted) and isinstance(value, bool) == (bool in plain)
        wanted = _KINDS[plain[0]]
    if not good:
        raise ValueError(f"The spec has {name}={_brief(value)}; expected {wanted}.")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class Plan(NamedTuple):
    """A checked spec with all that a sweep needs.

    Attributes:
      spec: the spec, with the MDP file's hash filled in.
      mdp: the MDP.
      problem: the public facts.
      privatizer, learner: the objects.
      axes: values of epsilon and of each declared parameter, in the order of the grid.
      calibrated: one for each epsilon.
      job: what the engine runs.
    """

    spec: SweepSpec
    mdp: MDP
    problem: Problem
    privatizer: Privatizer
    learner: Learner
    axes: dict[str, tuple[float, ...]]
    calibrated: tuple[Calibrated, ...]
    job: engine.Job

    @property
    def grid(self) -> tuple[dict[str, float], ...]:
        """Values of each cell."""
        return tuple(dict(zip(self.axes, row, strict=True)) for row in itertools.product(*self.axes.values()))


def learners() -> dict[str, Learner]:
    """All learners, those of the published experiment included."""
    return LEARNERS | published.LEARNERS


def privatizers() -> dict[str, Privatizer]:
    """All privatizers, those of the published experiment included."""
    return PRIVATIZERS | published.PRIVATIZERS


def build(spec: SweepSpec) -> environments.Built:
    """The environment that a spec names: what `mdp` makes of it may be far larger."""
    try:
        return environments.make(spec.environment, spec.horizon, spec.bernoulli_costs)
    except MemoryError:
        raise ValueError(
            f"'{spec.environment}' does not fit in memory; expected a smaller table. Pass fewer states or a smaller "
            "horizon."
        ) from None


def with_hash(spec: SweepSpec, mdp: MDP) -> SweepSpec:
    """The spec with the hash of the MDP's arrays, which must be the recorded one if there is one."""
    digest = hashlib.sha256()
    for x in mdp:
        digest.update(np.ascontiguousarray(x).tobytes())
    found = digest.hexdigest()
    if spec.mdp_hash not in (None, found):
        raise ValueError(
            f"The MDP '{spec.environment}' is not the recorded one (SHA-256 {found[:12]}..., expected "
            f"{str(spec.mdp_hash)[:12]}...). Restore its file, or run without --from."
        )
    return spec.replace(mdp_hash=found)


def problem_of(spec: SweepSpec, shape: tuple[int, int, int]) -> Problem:
    """The public facts of a spec for an MDP of shape (H, S, A)."""
    _validate.positive_int("episodes", spec.episodes, "Pass the number of users, one episode each.")
    if spec.episodes >= _MAX_EPISODES:
        raise ValueError(f"Expected episodes={spec.episodes} < 2**31, the largest number of users. Pass fewer.")
    return Problem(
        *shape,
        spec.episodes,
        spec.homogeneous,
        spec.families,
        spec.centred_costs,
        spec.neighbours,
        schedule(spec.releases),
    )


def resolve(spec: SweepSpec, mdp: MDP | None = None) -> Plan:
    """Checks a spec, builds its MDP if none is given, and asks accounting for every noise scale.

    What does not fit in memory is refused before anything of its size is made.
    """
    plugins.load(spec.plugins)
    learner = learners()[_validate.one_of("learner", spec.learner, learners())]
    privatizer = privatizers()[_validate.one_of("privatizer", spec.privatizer, privatizers())]
    published.check_pair(learner, privatizer)
    _check_seeds(spec)
    _validate.one_of("precision", spec.precision, PRECISIONS)
    postprocess = _validate.one_of("postprocess", spec.postprocess or learner.postprocess, POSTPROCESSORS)
    if spec.regret is not None:
        _validate.one_of("regret", spec.regret, REGRETS)
    metrics = {metric.name: metric for metric in learner.metrics}
    chosen = tuple(metrics[_validate.one_of(f"metric of {learner.name}", name, metrics)] for name in spec.metrics)
    built = build(spec) if mdp is None else None
    problem = problem_of(spec, built.shape if built is not None else mdp.shape)  # type: ignore[union-attr]
    axes = _axes(spec, learner, privatizer, problem)
    realised = learner.realised if spec.regret is None else spec.regret == "realised"
    program = engine.Program(learner, privatizer, POSTPROCESSORS[postprocess], problem.shape, realised, chosen)
    mesh, num_cells = engine.devices(), math.prod(len(values) for values in axes.values())
    tile = engine.tile_seeds(spec.seeds, num_cells, mesh, problem.shape)
    every = _record_every(spec)
    memory.check(program, problem, num_cells, spec.seeds, tile, mesh, spec.episodes // every + 2)
    if built is not None:
        mdp = built.mdp
    assert mdp is not None
    spec = with_hash(spec, mdp)
    if spec.homogeneous and not mdp_lib.is_homogeneous(mdp):
        raise ValueError("The stages of this MDP differ, so counts cannot be pooled over h. Drop homogeneous.")
    calibrated = tuple(
        accounting.calibrate(
            privatizer,
            problem,
            epsilon,
            dp_delta=spec.dp_delta,
            target=spec.target,
            calibration=spec.calibration,
            failure_prob=axes["failure_prob"][0] if "failure_prob" in axes else 0.1,
            time_varying=spec.precision == "time_varying",
        )
        for epsilon in axes["epsilon"]
    )
    for epsilon, found in zip(axes["epsilon"], calibrated, strict=True):
        accounting.check_float32(privatizer, problem, epsilon, found.noise_scale)
    cells, shared = _numbers(problem, privatizer, mdp, axes, calibrated)
    seeds, records = (spec.seed_start, spec.seeds), _records(spec.episodes, every)
    job = engine.Job(program, cells, shared, seeds, spec.episodes, records, tile, mesh)
    return Plan(spec, mdp, problem, privatizer, learner, axes, calibrated, job)


def _check_seeds(spec: SweepSpec) -> None:
    _validate.positive_int("seeds", spec.seeds)
    if spec.seeds > 2**31:
        raise ValueError(f"Expected seeds={spec.seeds} <= 2**31, the number of different seeds. Pass fewer.")
    if spec.seed_start < 0 or spec.seed_start + spec.seeds > 2**31:
        raise ValueError(f"Expected seed_start={spec.seed_start} from 0 to 2**31 - seeds. Pass another start.")


def _axes(spec: SweepSpec, learner: Learner, privatizer: Privatizer, problem: Problem) -> dict[str, tuple[float, ...]]:
    """Values of epsilon and of each declared parameter of the learner."""
    epsilons = spec.epsilons if privatizer.private or privatizer.law.name != "none" else (math.inf,)
    declared = {p.name: p for p in learner.parameters}
    for name in spec.grid:
        _validate.one_of(f"parameter of {learner.name}", name, declared)
    axes = {"epsilon": tuple(_validate.epsilon(float(e)) for e in epsilons)}
    for name, default in learner.defaults(problem).items():
        check = declared[name].check
        values = tuple(float(v) for v in spec.grid.get(name, (default,)))
        axes[name] = tuple(check(name, v) for v in values) if check else values
    for name, values in axes.items():
        if not values or len(set(values)) < len(values):
            raise ValueError(f"Expected {name}={list(values)} to be distinct and at least one. Drop repeated values.")
    if len(axes.get("failure_prob", (0.0,))) > 1:
        raise ValueError("Expected one failure_prob, as the error bounds depend on it. Run one sweep for each.")
    return axes


def _numbers(
    problem: Problem,
    privatizer: Privatizer,
    mdp: MDP,
    axes: Mapping[str, tuple[float, ...]],
    calibrated: tuple[Calibrated, ...],
) -> tuple[engine.Cell, engine.Shared]:
    """All numbers of a job: those of the cells, in the order of the grid, and those that they share."""
    found = [parameters(privatizer, problem, c) for c in calibrated]
    index = {epsilon: i for i, epsilon in enumerate(axes["epsilon"])}
    rows = list(itertools.product(*axes.values()))
    order = np.array([index[row[0]] for row in rows])
    hyper: dict[str, Any] = {
        name: np.array([row[i] for row in rows], np.float32) for i, name in enumerate(axes) if i > 0
    }
    hyper["num_episodes"] = np.full(len(rows), problem.num_episodes, np.float32)
    cells = engine.Cell(
        np.stack([p.scale for p in found])[order],
        type(found[0].error)(*(np.stack(tables)[order] for tables in zip(*(p.error for p in found), strict=True))),
        hyper,
    )
    every = problem.schedule.every
    times = () if every else engine.release_times(problem.schedule.times(problem.num_episodes), every)
    shared = engine.Shared(mdp_lib.prepare(mdp), found[0].data, times)
    return _on_device(cells), _on_device(shared)


def _on_device(tree: Any) -> Any:
    import jax

    return jax.tree.map(jnp.asarray, tree)


def _record_every(spec: SweepSpec) -> int:
    every = spec.record_every if spec.record_every is not None else max(1, spec.episodes // 200)
    return _validate.positive_int("record_every", every, "Pass how many episodes lie between two records.")


def _records(K: int, every: int) -> np.ndarray:
    """Numbers of the episodes whose cumulative regret is kept."""
    kept = np.union1d(np.arange(every, K + 1, every), [9 * K // 10, K])
    return kept[kept > 0]
