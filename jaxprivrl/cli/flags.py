"""Flags that commands share, and how commands print."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxprivrl import _validate

Many = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class MechanismFlags:
    """Flags that every command about a mechanism shares."""

    privatizer: str = "central_laplace"
    """Privatizer; `jaxprivrl list` names them."""
    dp_delta: float = 1e-5
    """Delta of an approximate target, and of the epsilon reported beside a pure one."""
    target: str | None = None
    """pure or approximate; by default pure for Laplace and randomized response, approximate for Gaussian noise."""
    families: int = 3
    """Released count families: 3 as in the paper, or 2 with visits derived by summing."""
    homogeneous: bool = False
    """Pool counts over the steps of an episode."""
    centred_costs: bool = False
    """Count costs as c - 1/2: a user moves less, so less noise is needed."""
    calibration: str = "tight"
    """tight (the stated epsilon holds), printed (the paper's constants) or published_code (the authors' code)."""


@dataclasses.dataclass(frozen=True)
class EnvironmentFlags:
    """Flags that choose an MDP."""

    environment: str = "river_swim"
    """Environment; `jaxprivrl list` names them."""
    horizon: int | None = None
    """Steps of an episode, where the environment leaves it open (default 20)."""
    mdp: Path | None = None
    """An .npz file with costs[H|1,S,A], transitions[H|1,S,A,S], initial[S] or an int, and maybe horizon."""
    bernoulli_costs: bool = False
    """Observed costs are Bernoulli draws of the mean costs rather than the means."""

    def build(self) -> Any:
        """The MDP that the flags name."""
        from jaxprivrl import environments

        if self.mdp is not None:
            return environments.from_file(self.mdp, horizon=self.horizon, bernoulli=self.bernoulli_costs)
        _validate.one_of("environment", self.environment, environments.ENVIRONMENTS)
        if self.horizon is not None:
            _validate.positive_int("horizon", self.horizon)
        sizes = {} if self.horizon is None else {"horizon": self.horizon}
        return environments.ENVIRONMENTS[self.environment](**sizes, bernoulli=self.bernoulli_costs)

    @property
    def label(self) -> str:
        """Name of the MDP in results."""
        return self.environment if self.mdp is None else str(self.mdp)


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
    failure_prob: float = 0.1
    """The learner's failure probability (delta in the bonuses)."""
    error_scale: float = 1.0
    """Multiplier of the error bounds E that learners read; free to choose, like the bonus scale."""
    precision: str = "worst_case"
    """Error bounds in the bonuses: worst_case (the paper's fixed E) or time_varying (the error at each episode)."""
    postprocess: str | None = None
    """Post-processing of releases: none, clip or project; by default what the learner's paper says."""


def spec_of(flags: Any, **fields: Any) -> Any:
    """The SweepSpec with every field that the flags have."""
    from jaxprivrl.sweep import SweepSpec

    names = {f.name for f in dataclasses.fields(SweepSpec)}
    values = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name in names}
    return SweepSpec(**values | fields)


def problem_of(flags: Any, num_states: int, num_actions: int) -> Any:
    from jaxprivrl import accounting

    for name, value in (("horizon", flags.horizon), ("episodes", flags.episodes),
                        ("num_states", num_states), ("num_actions", num_actions)):  # fmt: skip
        _validate.positive_int(name, value)
    return accounting.Problem(
        flags.horizon,
        num_states,
        num_actions,
        flags.episodes,
        flags.homogeneous,
        flags.families,
        flags.centred_costs,
    )


def print_json(tree: Any) -> None:
    from jaxprivrl.results import json_safe

    print(json.dumps(json_safe(tree), indent=1, ensure_ascii=False))


def print_table(rows: list[dict[str, Any]]) -> None:
    from jaxprivrl.tables import plain

    print(plain(rows))


def written(out: Path | None) -> str:
    return "" if out is None else f" Wrote {out}."
