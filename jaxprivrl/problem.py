"""The public facts of an experiment: `Problem`, and `Shape`, the part of it that fixes a program. No JAX."""

from dataclasses import dataclass, replace
from typing import Any

from jaxprivrl import _validate
from jaxprivrl.schedules import EVERY, Schedule

FAMILIES = ("visits", "costs", "transitions")
NEIGHBOURS = ("replace", "add_remove")


@dataclass(frozen=True)
class Shape:
    """Static sizes that fix the shapes of a program: one compilation for each distinct value.

    Attributes:
      horizon, num_states, num_actions: H, S, A.
      num_stages: H, or 1 when counts are pooled over h (time-homogeneous model).
      families: released count families: 3 (visits, costs, transitions) or 2 (visits derived by summing).
      centred_costs: whether costs get their noise as c - 1/2, half the noisy visits added back afterwards.
      every: whether there is a release after each user.
      max_releases: static bound on the number of releases: the size of a tree's stack, not a calibration.
    """

    horizon: int
    num_states: int
    num_actions: int
    num_stages: int
    families: int = 3
    centred_costs: bool = False
    every: bool = True
    max_releases: int = 2**24 - 1


@dataclass(frozen=True)
class Problem:
    """What everybody may know of an experiment; all accounting follows from it.

    Attributes:
      horizon: H, steps of an episode; one user is one episode.
      num_states: S.
      num_actions: A.
      num_episodes: K, the number of users, and the largest number that will ever be released.
      homogeneous: True if counts are pooled over the steps h (a stage axis of length 1).
      families: 3 releases visits, costs and transitions; 2 releases costs and transitions, visits are summed over s2.
      centred_costs: True if a user adds c - 1/2 rather than c to its cells; half the noisy visits are added back.
      neighbours: "replace" (one user by another) or "add_remove" (its contribution set to zero, the slot stays).
      schedule: when releases are made.
    """

    horizon: int
    num_states: int
    num_actions: int
    num_episodes: int
    homogeneous: bool = False
    families: int = 3
    centred_costs: bool = False
    neighbours: str = "replace"
    schedule: Schedule = EVERY

    def __post_init__(self) -> None:
        for name in ("horizon", "num_states", "num_actions", "num_episodes"):
            value = getattr(self, name)
            if isinstance(value, bool) or value != int(value) or value < 1:
                raise ValueError(f"Expected {name}={value} >= 1. Pass a whole number for {name}.")
            object.__setattr__(self, name, int(value))  # 1e6 is a whole number
        if self.families not in (2, 3):
            raise ValueError(f"Expected families={self.families} to be 3 (the paper) or 2 (visits derived by summing).")
        _validate.one_of("neighbours", self.neighbours, NEIGHBOURS)
        if not isinstance(self.schedule, Schedule):
            raise ValueError(
                f"Expected schedule={self.schedule!r} to be a Schedule. Pass schedules.schedule('equal:8')."
            )
        self.schedule.check(self.num_episodes)

    def replace(self, **changes: Any) -> "Problem":
        """The problem with other values of some fields."""
        return replace(self, **changes)

    @property
    def num_releases(self) -> int:
        """J."""
        return self.schedule.num_releases(self.num_episodes)

    @property
    def released_families(self) -> tuple[str, ...]:
        """Names of the families that get noise of their own."""
        return FAMILIES[-self.families :]

    @property
    def shape(self) -> Shape:
        """What of this fixes a program."""
        return Shape(
            horizon=self.horizon,
            num_states=self.num_states,
            num_actions=self.num_actions,
            num_stages=1 if self.homogeneous else self.horizon,
            families=self.families,
            centred_costs=self.centred_costs,
            every=self.schedule.every,
            max_releases=_rung(self.num_releases),
        )


def _rung(releases: int) -> int:
    """The least of 2**8 - 1, 2**16 - 1, 2**24 - 1, 2**31 - 1 that holds J: few distinct programs over all J."""
    return next(2**b - 1 for b in (8, 16, 24, 31) if releases < 2**b)
