"""What an environment is: declared parameters, a table in its own units, and what is built from it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxprivrl import _validate, parameters
from jaxprivrl.parameters import Parameter

if TYPE_CHECKING:
    from jaxprivrl.mdp import MDP

TOLERANCE = 1e-9  # of what rounding in float64 may do to a table


class Affine(NamedTuple):
    """The map from costs in [0, 1] back to the units of the problem.

    One step of cost c is `offset + scale * c` in native units. A native reward has scale < 0, a native cost scale > 0.

    Attributes:
      scale: native units of a whole unit of cost.
      offset: native units of a step of cost zero, the best that there is.
      steps: H, steps of an episode.
    """

    scale: float
    offset: float
    steps: int

    def total(self, cost: Any) -> Any:
        """Native return of an episode whose costs add up to `cost`: offset * steps + scale * cost."""
        return self.offset * self.steps + self.scale * cost

    def loss(self, regret: Any) -> Any:
        """A difference of costs, such as regret, in native units: |scale| * regret."""
        return abs(self.scale) * regret


class Grid(NamedTuple):
    """Where states lie on a picture: state s is drawn in row cells[s] // columns, column cells[s] % columns.

    Attributes:
      rows, columns: size of the picture.
      cells: int[S]; several states may share a cell (Taxi), -1 is a state that is not drawn.
    """

    rows: int
    columns: int
    cells: np.ndarray


class Table(NamedTuple):
    """What the file of an environment makes: arrays with a stage axis of length H, or 1 where all stages agree.

    Attributes:
      horizon: H.
      costs: [H|1, S, A] mean costs in [0, 1]; `rescale` makes them of rewards.
      transitions: [H|1, S, A, S].
      initial: [S], or the index of a fixed first state.
      native: (scale, offset) of `Affine`; (1, 0) where the costs are native.
      ends: states that stand for the end of an episode: every action stays there, and pays nothing in native units.
      support: bool[H|1, S, A, S], the transitions that are possible as far as anybody knows in advance, or None.
      grid: where the states are drawn, or None.
      actions: names of the actions, or None.
    """

    horizon: int
    costs: np.ndarray
    transitions: np.ndarray
    initial: Any
    native: tuple[float, float] = (1.0, 0.0)
    ends: tuple[int, ...] = ()
    support: np.ndarray | None = None
    grid: Grid | None = None
    actions: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Built:
    """An environment with its parameters chosen. Host arrays in float64; `mdp` is the one that is simulated.

    Attributes:
      horizon: H.
      costs: f64[H|1, S, A], mean costs in [0, 1]; length 1 where all stages agree.
      transitions: f64[H|1, S, A, S].
      initial: f64[S].
      bernoulli: whether an observed cost is a Bernoulli draw of the mean or the mean itself.
      native: back to the units of the problem.
      ends: absorbing states that stand for the end of an episode. They pay nothing in native units for ever after, so
        that an episode which ends before H has the native return of its steps, and regret does not notice the rest.
      support: bool[H|1, S, A, S] or None; transitions outside it have probability zero, and that is public knowledge.
      grid: where the states are drawn, or None.
      actions: names of the actions, or None.
    """

    horizon: int
    costs: np.ndarray
    transitions: np.ndarray
    initial: np.ndarray
    bernoulli: bool
    native: Affine
    ends: tuple[int, ...] = ()
    support: np.ndarray | None = None
    grid: Grid | None = None
    actions: tuple[str, ...] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, S, A)."""
        return self.horizon, *self.costs.shape[1:]

    @property
    def stationary(self) -> bool:
        """Whether costs and transitions are stored once for all stages."""
        return len(self.costs) == len(self.transitions) == 1

    @cached_property
    def mdp(self) -> "MDP":
        """The MDP on the device, f32, its stage axis of length H; made when it is first asked for."""
        from jaxprivrl import mdp

        return mdp.make(self.costs, self.transitions, self.initial, horizon=self.horizon, bernoulli=self.bernoulli)

    @cached_property
    def host(self) -> "MDP":
        """The same MDP in float64 on the host; where all stages agree, H views of one array."""
        H = self.horizon
        costs, transitions = (np.broadcast_to(x, (H, *x.shape[1:])) for x in (self.costs, self.transitions))
        return _on_host(costs, transitions, self.initial, self.bernoulli)


@dataclass(frozen=True)
class Environment:
    """A registered environment: what it is called, what it can be told, and how its table is made.

    Attributes:
      name: as on the command line.
      summary: one line for help and documentation.
      parameters: what `make` accepts besides horizon and Bernoulli costs.
      table: (horizon or None, **parameters) -> Table; None is the environment's own horizon.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    table: Callable[..., "Table"] = field(repr=False)

    @property
    def required(self) -> tuple[str, ...]:
        """Parameters without which it cannot be made."""
        return tuple(p.name for p in self.parameters if p.default is parameters.REQUIRED)

    def make(self, horizon: int | None = None, bernoulli: bool = False, **given: Any) -> Built:
        """The environment with these parameters, checked.

        Args:
          horizon: steps of an episode, or None for the environment's own.
          bernoulli: whether an observed cost is a Bernoulli draw of the mean.
          given: declared parameters; the others take their defaults.
        """
        if horizon is not None:
            horizon = _validate.positive_int("horizon", horizon)
        return finish(self.table(horizon, **parameters.resolve(self.parameters, given, self.name)), bernoulli)

    def build(self, horizon: int | None = None, bernoulli: bool = False, **given: Any) -> "MDP":
        """The MDP of `make` with the same arguments."""
        return self.make(horizon, bernoulli, **given).mdp


def rescale(payoffs: np.ndarray, best: float, worst: float) -> tuple[np.ndarray, tuple[float, float]]:
    """Costs in [0, 1] of native payoffs, and (scale, offset) back: payoff = best + (worst - best) * cost.

    Args:
      payoffs: mean native rewards (best > worst) or native costs (best < worst).
      best, worst: bounds on every payoff of a step, drawn or mean; zero lies between them if episodes end early.
    """
    scale = worst - best
    costs = (payoffs - best) / scale
    if np.any(costs < -TOLERANCE) or np.any(costs > 1 + TOLERANCE):
        raise ValueError(f"Payoffs span {payoffs.min():g} to {payoffs.max():g}; expected {worst:g} to {best:g}.")
    return np.clip(costs, 0.0, 1.0), (scale, best)


def finish(table: Table, bernoulli: bool) -> Built:
    """Checks a table and makes it a `Built`."""
    from jaxprivrl import mdp

    costs, transitions = (np.asarray(x, np.float64) for x in (table.costs, table.transitions))
    S = costs.shape[1]
    start = np.asarray(table.initial)
    initial = np.eye(S)[int(start)] if start.ndim == 0 else start.astype(np.float64)
    mdp.validate(_on_host(costs, transitions, initial, bernoulli))
    scale, offset = table.native
    for end in table.ends:
        if np.any(transitions[:, end, :, end] != 1.0) or np.any(abs(offset + scale * costs[:, end]) > TOLERANCE):
            raise ValueError(f"State {end} is no end; expected every action to stay there and to pay nothing.")
    if table.support is not None and np.any((transitions > 0) & ~table.support):
        h, s, a, s2 = (int(i) for i in np.argwhere((transitions > 0) & ~table.support)[0])
        raise ValueError(
            f"transitions[h={h}, s={s}, a={a}, s2={s2}] is {transitions[h, s, a, s2]:g}; expected 0 outside the "
            "support. Widen the support."
        )
    return Built(
        table.horizon,
        costs,
        transitions,
        initial,
        bool(bernoulli),
        Affine(float(scale), float(offset), table.horizon),
        table.ends,
        table.support,
        table.grid,
        table.actions,
    )


def _on_host(costs: Any, transitions: Any, initial: Any, bernoulli: Any) -> "MDP":
    """An MDP whose arrays are NumPy's, in float64."""
    from jaxprivrl.mdp import MDP

    return MDP(costs, transitions, initial, bernoulli)
