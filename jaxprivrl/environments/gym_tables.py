"""Gymnasium's tabular environments, read from their own transition tables."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprivrl import _validate
from jaxprivrl.environments.base import Environment, Grid, Table, rescale
from jaxprivrl.parameters import REQUIRED, Parameter, among

Outcome = tuple[float, int, float, bool]  # probability, next state, reward, whether the episode ends
Outcomes = Mapping[int, Mapping[int, list[Outcome]]]

FROZEN_LAKE = ("left", "down", "right", "up")
CLIFF = ("up", "right", "down", "left")
TAXI = ("south", "north", "east", "west", "pick up", "drop off")


def _load(name: str, module: str = "gymnasium") -> Any:
    """An optional module, or one sentence on how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"gym:{name} needs gymnasium, and there is no module '{error.name}'. Run pip install 'jaxprivrl[envs]'."
        ) from error


def from_outcomes(
    outcomes: Outcomes, initial: Any, horizon: int, grid: Grid | None = None, actions: tuple[str, ...] | None = None
) -> Table:
    """A table of gymnasium's `P[state][action] = [(probability, next state, reward, ends), ...]`.

    Observed costs are those of the mean reward of (s, a). An episode that ends stays where it ended, for no reward.
    Where that state can also be visited without an end, ends get a state of their own, the last one.
    """
    initial = np.asarray(initial, np.float64)
    S, A = len(outcomes), len(outcomes[0])
    rows = [(s, a, *outcome) for s in range(S) for a in range(A) for outcome in outcomes[s][a]]
    ends = {row[3] for row in rows if row[5] and row[2] > 0}
    extra = bool(ends & _visited(outcomes, initial))
    total = S + extra
    P, rewards = np.zeros((1, total, A, total)), np.zeros((1, total, A))
    for s, a, p, s2, r, over in rows:
        P[0, s, a, S if over and extra else s2] += p
        rewards[0, s, a] += p * r
    stops = (S,) if extra else tuple(sorted(ends))
    for end in stops:
        P[0, end] = np.eye(total)[end]
        rewards[0, end] = 0.0
    # Zero is what a step after the end pays, so it is always among the payoffs.
    paid = [0.0, *(float(row[4]) for row in rows)]
    costs, native = rescale(rewards, best=max(paid), worst=min(paid) if min(paid) < max(paid) else max(paid) - 1.0)
    start = np.append(initial, np.zeros(int(extra)))
    if grid is not None and extra:
        grid = grid._replace(cells=np.append(grid.cells, -1))
    return Table(horizon, costs, P, start, native, stops, P > 0, grid, actions)


def _visited(outcomes: Outcomes, initial: np.ndarray) -> set[int]:
    """States that an episode can be in without having ended."""
    found = {int(s) for s in np.flatnonzero(initial)}
    waiting = list(found)
    while waiting:
        for choices in outcomes[waiting.pop()].values():
            for p, s2, _, over in choices:
                if p > 0 and not over and s2 not in found:
                    found.add(int(s2))
                    waiting.append(int(s2))
    return found


def _toy(name: str, module: str, kind: str, **arguments: Any) -> Any:
    """One of gymnasium's toy-text environments by its class: ids change their version, the tables do not."""
    return getattr(_load(name, f"gymnasium.envs.toy_text.{module}"), kind)(**arguments)


def _frozen_lake(horizon: int | None, size: int, slippery: bool) -> Table:
    env = _toy("FrozenLake-v1", "frozen_lake", "FrozenLakeEnv", map_name=f"{size}x{size}", is_slippery=slippery)
    grid = Grid(size, size, np.arange(size * size))
    return from_outcomes(env.P, env.initial_state_distrib, horizon or 10 * size, grid, FROZEN_LAKE)


def _cliff_walking(horizon: int | None, slippery: bool) -> Table:
    env = _toy("CliffWalking-v1", "cliffwalking", "CliffWalkingEnv", is_slippery=slippery)
    return from_outcomes(env.P, env.initial_state_distrib, horizon or 30, Grid(4, 12, np.arange(48)), CLIFF)


def _taxi(horizon: int | None) -> Table:
    env = _toy("Taxi-v3", "taxi", "TaxiEnv")
    return from_outcomes(env.P, env.initial_state_distrib, horizon or 30, Grid(5, 5, np.arange(500) // 20), TAXI)


def _any_id(horizon: int | None, id: str) -> Table:
    gymnasium = _load(id)
    if id not in gymnasium.registry:
        near = _validate.nearest(id, gymnasium.registry)
        raise ValueError(f"gymnasium has no environment '{id}'.{f' Pass {near!r}.' if near else ''}")
    env = gymnasium.make(id)
    inner = env.unwrapped
    initial = getattr(inner, "initial_state_distrib", None)
    if not isinstance(getattr(inner, "P", None), Mapping) or initial is None:
        raise ValueError(f"'{id}' has no transition table; expected a tabular environment. Pass gym:FrozenLake-v1.")
    return from_outcomes(inner.P, initial, horizon or env.spec.max_episode_steps or 100)


FROZEN_LAKE_WORLD = Environment(
    "gym:FrozenLake-v1",
    "Gymnasium's frozen lake: reach the goal, avoid the holes; the default horizon is shorter than gymnasium's limit.",
    (
        Parameter("size", 4, "4 or 8, the two maps of gymnasium", among(4, 8)),
        Parameter("slippery", True, "whether two of three steps slip sideways"),
    ),
    _frozen_lake,
)

CLIFF_WALKING = Environment(
    "gym:CliffWalking-v1",
    "Gymnasium's walk along a cliff: -1 per step, -100 and back to the start for falling.",
    (Parameter("slippery", False, "whether two of three steps slip sideways"),),
    _cliff_walking,
)

TAXI_WORLD = Environment(
    "gym:Taxi-v3",
    "Gymnasium's taxi: fetch a passenger and drop them at the right place; 500 states, deterministic.",
    (),
    _taxi,
)

ANY_GYM = Environment(
    "gym",
    "Any other environment of gymnasium that has a transition table, by its id; the horizon is its own limit.",
    (Parameter("id", REQUIRED, "an id of gymnasium such as Taxi-v4", kind=str),),
    _any_id,
)
