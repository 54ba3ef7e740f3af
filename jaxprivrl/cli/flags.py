"""Flags that commands share, and how commands print."""

import dataclasses
import json as json_lib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from jaxprivrl.experiments.spec import SweepSpec
    from jaxprivrl.problem import Problem

Many = tuple[float, ...]
Repeated = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclasses.dataclass(frozen=True)
class Command:
    """Flags of every command."""

    plugin: Repeated = ()
    """A module of your own that registers mechanisms, learners, schedules or environments; may be repeated."""
    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def check(self, argv: list[str]) -> None:
        """Raises on flags that do not go together, as they were typed; a flag at its default counts as given."""


@dataclasses.dataclass(frozen=True)
class CountFlags:
    """Flags of the counts that are released."""

    releases: str = "every"
    """When releases are made: every, equal:J, geometric:first=F,growth=G or octaves; `jaxprivrl list` names them."""
    families: int = 3
    """Released count families: 3 as in the paper, or 2 with visits derived by summing."""
    homogeneous: bool = False
    """Pool counts over the steps of an episode."""
    centred_costs: bool = False
    """Count costs as c - 1/2: a user moves less, so less noise is needed."""
    neighbours: str = "replace"
    """replace (one user replaced) or add_remove (one user's contribution set to zero)."""
    dp_delta: float = 1e-5
    """Delta of an approximate target, and of the epsilon reported beside a pure one."""


@dataclasses.dataclass(frozen=True)
class TargetFlags(CountFlags):
    """Flags of how noise scales are chosen."""

    target: str | None = None
    """pure or approximate; by default pure where the mechanism can be."""
    calibration: str = "tight"
    """tight (the stated epsilon holds), printed (the paper's constants) or published_code (the authors' code)."""


@dataclasses.dataclass(frozen=True)
class MechanismFlags(TargetFlags):
    """Flags that every command about one mechanism shares."""

    privatizer: str = "central_laplace"
    """Privatizer; `jaxprivrl list` names them."""


@dataclasses.dataclass(frozen=True)
class SizeFlags:
    """Sizes of a problem without an MDP."""

    horizon: int = 20
    """Steps of an episode."""
    episodes: int = 20_000
    """Largest number of episodes."""
    num_states: int = 6
    """States; they do not change the sensitivity, only the error bounds."""
    num_actions: int = 2
    """Actions; likewise."""


@dataclasses.dataclass(frozen=True)
class EnvironmentFlags:
    """Flags that choose an MDP."""

    environment: str = "river_swim"
    """Environment with its parameters, as in river_swim:num_states=8; `jaxprivrl list` names them."""
    horizon: int | None = None
    """Steps of an episode, where the environment leaves it open (default 20)."""
    mdp: Path | None = None
    """An .npz file with costs[H|1,S,A], transitions[H|1,S,A,S], initial[S] or an int, and maybe horizon."""
    bernoulli_costs: bool = False
    """Observed costs are Bernoulli draws of the mean costs rather than the means."""


@dataclasses.dataclass(frozen=True)
class GridFlags:
    """Axes of the learner's parameters."""

    bonus_scales: Many | None = None
    """Multipliers of the whole exploration bonus: short for --grid bonus_scale=..."""
    learning_rates: Many | None = None
    """Step sizes of mirror descent: short for --grid learning_rate=..."""


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Flags of everything that simulates."""

    epsilons: Many = (1.0,)
    """Privacy targets; `exact` ignores them."""
    seeds: int = 20
    """Number of seeds."""
    seed_start: int = 0
    """First seed."""
    episodes: int = 20_000
    """Episodes K; mechanisms are calibrated for exactly as many."""
    grid: Repeated = ()
    """Values of a declared parameter of the learner, as an axis: bonus_scale=0.01,0.1; may be repeated."""
    failure_prob: float | None = None
    """The learner's failure probability (delta in the bonuses), by default 0.1: short for --grid failure_prob=..."""
    error_scale: float | None = None
    """Multiplier of the error bounds E that learners read, by default 1: short for --grid error_scale=..."""
    precision: str = "worst_case"
    """Error bounds in the bonuses: worst_case (the paper's fixed E) or time_varying (the error at each release)."""
    postprocess: str | None = None
    """Post-processing of releases: none, clip or project; by default what the learner's paper says."""


def spec_of(flags: Any, **fields: Any) -> "SweepSpec":
    """The SweepSpec of the flags: every flag is either a field of it or named here."""
    from jaxprivrl.experiments.spec import SweepSpec

    names = {f.name for f in dataclasses.fields(SweepSpec)}
    values = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name in names}
    values["grid"] = fields.pop("grid", grid_of(flags))
    values["plugins"] = flags.plugin
    if flags.mdp is not None and flags.environment != "river_swim":
        raise ValueError(f"Both --mdp {flags.mdp} and --environment {flags.environment} are given. Pass one of them.")
    if flags.mdp is not None:
        values["environment"] = f"file:{flags.mdp}"
    return SweepSpec(**values | fields)


def grid_of(flags: Any) -> dict[str, tuple[float, ...]]:
    """The learner's parameters from --grid and its shorthands."""
    grid: dict[str, tuple[float, ...]] = {}
    short = ("bonus_scale", "learning_rate", "failure_prob", "error_scale")
    given = {name: getattr(flags, flag) for name in short for flag in (name, name + "s") if hasattr(flags, flag)}
    for name, value in given.items():
        if value is not None:
            grid[name] = value if isinstance(value, tuple) else (value,)
    for item in flags.grid:
        name, separator, body = item.partition("=")
        if not separator or not body:
            raise ValueError(f"Expected --grid {item} to be name=value,value. Write --grid bonus_scale=0.01,0.1.")
        if name in grid:
            raise ValueError(f"{name} is given twice, by --grid {item} and before. Keep one of them.")
        try:
            grid[name] = tuple(float(x) for x in body.split(","))
        except ValueError:
            raise ValueError(f"Expected numbers in --grid {item}. Write --grid {name}=0.01,0.1.") from None
    return grid


def problem_of(flags: Any) -> "Problem":
    """The Problem of size and mechanism flags."""
    from jaxprivrl.problem import Problem
    from jaxprivrl.schedules import schedule

    return Problem(
        flags.horizon,
        flags.num_states,
        flags.num_actions,
        flags.episodes,
        flags.homogeneous,
        flags.families,
        flags.centred_costs,
        flags.neighbours,
        schedule(flags.releases),
    )


def print_json(tree: Any) -> None:
    """One JSON object on stdout."""
    from jaxprivrl.experiments.results import json_safe

    print(json_lib.dumps(json_safe(tree), indent=1, ensure_ascii=False))


def print_table(rows: list[dict[str, Any]]) -> None:
    """Aligned columns on stdout."""
    from jaxprivrl.experiments.tables import plain

    print(plain(rows))


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Quantities and values, as a table or as JSON."""
    if as_json:
        print_json(facts)
    else:
        print_table([{"quantity": k, "value": v} for k, v in facts.items()])


def written(out: Path | None) -> str:
    """What was written, for the last line."""
    return "" if out is None else f" Wrote {out}."
