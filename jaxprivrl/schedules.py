"""Release schedules: the public times 0 < t_1 < ... < t_J = K after which a release is made. No JAX.

Users t_{j-1} + 1 .. t_j are an epoch; a user is part of one epoch alone, so the releases of a mechanism are those of
J leaves in the place of K. A schedule may depend on K, never on data. SCHEDULES is the registry.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxprivrl import _validate
from jaxprivrl.parameters import AUTOMATIC, Parameter, parse, resolve

_MAX_RELEASES = 2**24  # of a schedule that lists its times


@dataclass(frozen=True)
class ScheduleKind:
    """A family of schedules.

    Attributes:
      name, summary: for people.
      parameters: declared, with defaults.
      times: `(num_episodes, **values) -> times`, increasing and up to K at most; K is added if it is not the last.
        None for a release after every user.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    times: Callable[..., Iterable[int]] | None

    def __call__(self, **values: Any) -> "Schedule":
        """The schedule with these values."""
        return Schedule(self, tuple(resolve(self.parameters, values, self.name).items()))


@dataclass(frozen=True)
class Schedule:
    """A kind of schedule with values for its parameters."""

    kind: ScheduleKind
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def every(self) -> bool:
        """Whether there is a release after each user."""
        return self.kind.times is None

    @property
    def text(self) -> str:
        """What `--releases` takes."""
        body = ",".join(f"{name}={AUTOMATIC if value is None else value}" for name, value in self.values)
        return f"{self.kind.name}:{body}" if body else self.kind.name

    def times(self, num_episodes: int) -> np.ndarray:
        """Release times, i64[J], increasing, the last one K."""
        return np.array(_times(self, num_episodes), np.int64)

    def num_releases(self, num_episodes: int) -> int:
        """J."""
        return num_episodes if self.every else len(_times(self, num_episodes))

    def epochs(self, num_episodes: int) -> np.ndarray:
        """Users of each epoch, i64[J]."""
        return np.diff(self.times(num_episodes), prepend=0)

    def smallest_epoch(self, num_episodes: int) -> int:
        """Users of the smallest epoch."""
        return 1 if self.every else int(self.epochs(num_episodes).min())

    def check(self, num_episodes: int) -> None:
        """Raises ValueError on times that are no schedule of this many users."""
        if not self.every:
            _times(self, num_episodes)


@functools.lru_cache(maxsize=256)
def _times(schedule: Schedule, num_episodes: int) -> tuple[int, ...]:
    kind = schedule.kind
    if kind.times is None:
        return tuple(range(1, num_episodes + 1))
    found = list(itertools.islice(kind.times(num_episodes, **dict(schedule.values)), _MAX_RELEASES + 1))
    if len(found) > _MAX_RELEASES:
        raise ValueError(f"Schedule '{schedule.text}' makes more than {_MAX_RELEASES} releases. Ask for fewer.")
    if not found:
        raise ValueError(f"Schedule '{schedule.text}' has no release. Make at least one, after the last user.")
    wrong = [t for t in found if isinstance(t, bool) or not isinstance(t, (int, np.integer))]
    if wrong:
        raise ValueError(f"Schedule '{schedule.text}' has the time {wrong[0]!r}; expected whole numbers of users.")
    if found[-1] < num_episodes:
        found.append(num_episodes)
    for before, after in zip([0, *found], found, strict=False):
        if after <= before or after > num_episodes:
            raise ValueError(
                f"Schedule '{schedule.text}' releases after {after} users, after one at {before}, of "
                f"{num_episodes}; expected increasing times from 1 to the number of users. Change its parameters."
            )
    return tuple(int(t) for t in found)


def _octaves(num_episodes: int, per: int) -> list[int]:
    """per releases to a doubling: 1, 2, .., 2 per, then every 2 users, every 4, ..."""
    times, t, step = [], 0, 1
    while t + step <= num_episodes:
        t += step
        times.append(t)
        if t >= 2 * per * step:
            step *= 2
    return times


def _equal(num_episodes: int, count: int) -> Iterable[int]:
    """count epochs whose sizes differ by one at most."""
    if count > num_episodes:
        raise ValueError(f"Expected count={count} <= {num_episodes}, the number of users. Pass fewer releases.")
    return (num_episodes * (i + 1) // count for i in range(count))


def _geometric(num_episodes: int, first: float, growth: float) -> list[int]:
    """t_1 = first (a share of K if below 1), then t -> max(t + 1, floor(growth t))."""
    t = math.floor(first) if first >= 1 else max(1, math.floor(first * num_episodes))
    if t > num_episodes:
        raise ValueError(f"Expected first={t} <= {num_episodes}, the number of users. Pass an earlier first release.")
    times = []
    while t < num_episodes:
        times.append(t)
        t = max(t + 1, math.floor(min(growth * t, num_episodes)))  # the product may be infinite
        if len(times) > _MAX_RELEASES:
            raise ValueError(f"growth={growth} makes more than {_MAX_RELEASES} releases. Pass a larger growth.")
    return [*times, num_episodes]


def _at_least_one(name: str, value: int) -> int:
    return _validate.positive_int(name, value)


def _above_one(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 1):
        raise ValueError(f"Expected {name}={value} > 1. Pass a factor such as {name}=1.1.")
    return value


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"Expected {name}={value} > 0. Pass a number of users, or a share of them below 1.")
    return value


def _per_octave(name: str, value: int) -> int:
    if _validate.positive_int(name, value) & (value - 1):
        raise ValueError(f"Expected {name}={value} to be a power of two. Pass {name}=4.")
    return value


SCHEDULES: dict[str, ScheduleKind] = {
    kind.name: kind
    for kind in (
        ScheduleKind("every", "after each user, as in the paper", (), None),
        ScheduleKind(
            "geometric",
            "first after some users, then each time after `growth` times as many",
            (
                Parameter("first", 1.0, "users before the first release, or a share of all if below 1", _positive),
                Parameter("growth", 2.0, "factor from one release to the next", _above_one),
            ),
            _geometric,
        ),
        ScheduleKind(
            "equal",
            "epochs of equal size",
            (Parameter("count", 8, "number of releases", _at_least_one),),
            _equal,
        ),
        ScheduleKind(
            "octaves",
            "some releases for each doubling of the users, from the first user on",
            (Parameter("per", 4, "releases to a doubling, a power of two", _per_octave),),
            _octaves,
        ),
    )
}
EVERY = SCHEDULES["every"]()


def schedule(text: str, registry: Mapping[str, ScheduleKind] = SCHEDULES) -> Schedule:
    """The schedule that "every", "equal:32" or "geometric:first=0.05,growth=1.1" names."""
    name, values = parse(text, "schedule", registry)
    return registry[name](**values)
