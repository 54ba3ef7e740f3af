"""Problems and mechanisms that the tests of accounting, of errors and of strategies share."""

import pytest

from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import schedule

RIVER = Problem(horizon=20, num_states=6, num_actions=2, num_episodes=20_000)
PRIVATE = [p for p in PRIVATIZERS.values() if p.private]


def by_name(privatizers, *more):
    """Parameters of a test, each with the name of its mechanism."""
    return [pytest.param(p, *more, id=p.name) for p in privatizers]


def on(problem, releases):
    """The problem on a schedule; "equal" makes 8 releases, or one for each user if they are fewer."""
    text = f"equal:{min(8, problem.num_episodes)}" if releases == "equal" else releases
    return problem.replace(schedule=schedule(text))


# Every mechanism on the schedule it is for, and those of an agent on one with few releases as well.
ON_SCHEDULES = [
    pytest.param(p, releases, id=f"{p.name}-{releases}")
    for p in PRIVATE
    for releases in ("every", "octaves", "equal")
    if releases == ("equal" if p.trust == "SDP" else "every") or (releases == "octaves" and not p.strategy.per_user)
]
