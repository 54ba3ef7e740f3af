"""Random MDPs: dense ones, drawn by NumPy or by a JAX key, and sparse ones."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxprivrl.environments.base import Environment, Table
from jaxprivrl.parameters import Parameter, at_least

if TYPE_CHECKING:
    from jaxprivrl.mdp import MDP

_states = at_least(1, "Pass the number of states.")
_actions = at_least(1, "Pass the number of actions.")
_seed = at_least(0, "Pass a whole number.")


def _positive(name: str, value: float) -> float:
    if not 0 < value < np.inf:
        raise ValueError(f"Expected {name}={value} > 0 and finite. Pass {name}=1 for uniform rows.")
    return value


def _random(horizon: int | None, states: int, actions: int, concentration: float, seed: int, stationary: bool) -> Table:
    """Uniform costs, Dirichlet(concentration) rows, and a Dirichlet(1) distribution of the first state."""
    rng = np.random.default_rng(seed)
    H = horizon or 10
    shape = (1 if stationary else H, states, actions)
    costs = rng.uniform(size=shape)
    P = rng.dirichlet(np.full(states, concentration), shape)
    # Small concentrations let a whole row underflow to 0 / 0: such a row has all its mass on one state.
    lost = ~np.isfinite(P).all(-1)
    P[lost] = np.eye(states)[rng.integers(states, size=int(lost.sum()))]
    return Table(H, costs, P, rng.dirichlet(np.ones(states)))


RANDOM = Environment(
    "random",
    "A dense random MDP: uniform costs, Dirichlet transition rows and first state.",
    (
        Parameter("states", 5, "number of states", _states),
        Parameter("actions", 3, "number of actions", _actions),
        Parameter("concentration", 1.0, "of the Dirichlet rows; small ones are nearly deterministic", _positive),
        Parameter("seed", 0, "draws the MDP", _seed),
        Parameter("stationary", False, "whether all stages are the same"),
    ),
    _random,
)


def _garnet(horizon: int | None, states: int, actions: int, branching: int, seed: int) -> Table:
    """A sparse random MDP: every (s, a) leads to `branching` states, drawn without replacement.

    Their probabilities are the gaps between branching - 1 sorted uniform draws; costs are uniform; the first state
    is state 0. Drawn from a public seed, so the support may be public.

    Reference: Archibald, McKinnon and Thomas, On the generation of Markov decision processes, 1995.
    """
    if branching > states:
        raise ValueError(f"Expected branching={branching} <= states={states}. Pass fewer next states.")
    rng = np.random.default_rng(seed)
    P = np.zeros((1, states, actions, states))
    for s in range(states):
        for a in range(actions):
            cuts = np.sort(rng.uniform(size=branching - 1))
            P[0, s, a, rng.choice(states, branching, replace=False)] = np.diff(cuts, prepend=0.0, append=1.0)
    return Table(horizon or 20, rng.uniform(size=(1, states, actions)), P, 0, support=P > 0)


GARNET = Environment(
    "garnet",
    "A sparse random MDP: every state and action leads to a few states only.",
    (
        Parameter("states", 20, "number of states", _states),
        Parameter("actions", 3, "number of actions", _actions),
        Parameter("branching", 3, "next states of a state and action", at_least(1, "Something must come next.")),
        Parameter("seed", 0, "draws the MDP", _seed),
    ),
    _garnet,
)


def random_mdp(
    key: Any,
    horizon: int,
    num_states: int,
    num_actions: int,
    *,
    homogeneous: bool = False,
    concentration: float = 1.0,
    bernoulli: bool = False,
) -> "MDP":
    """A random MDP: uniform costs, Dirichlet(concentration) transition rows and first state; consumes the key."""
    import jax

    from jaxprivrl import mdp

    H, S, A = 1 if homogeneous else horizon, num_states, num_actions
    key_cost, key_row, key_initial = jax.random.split(key, 3)
    costs = jax.random.uniform(key_cost, (H, S, A))
    rows = jax.random.dirichlet(key_row, np.full(S, concentration, np.float32), (H, S, A))
    initial = jax.random.dirichlet(key_initial, np.ones(S, np.float32))
    rows64, initial64 = np.asarray(rows, np.float64), np.asarray(initial, np.float64)
    return mdp.make(
        costs,
        rows64 / rows64.sum(-1, keepdims=True),
        initial64 / initial64.sum(),
        horizon=horizon,
        bernoulli=bernoulli,
    )
