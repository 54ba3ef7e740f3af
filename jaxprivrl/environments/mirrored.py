"""The mirror image of any environment: states and actions in reverse order."""

from typing import TYPE_CHECKING

import numpy as np

from jaxprivrl import parameters
from jaxprivrl.environments.base import Environment, Table
from jaxprivrl.parameters import REQUIRED, Parameter

if TYPE_CHECKING:
    from jaxprivrl.mdp import MDP


def mirror(mdp: "MDP") -> "MDP":
    """The same MDP with states and actions in reverse order: no learner's regret may depend on the order."""
    return mdp._replace(
        costs=mdp.costs[:, ::-1, ::-1], transitions=mdp.transitions[:, ::-1, ::-1, ::-1], initial=mdp.initial[::-1]
    )


def _environment(name: str, text: str) -> str:
    """The text of an environment in its shortest form, or an error."""
    from jaxprivrl.environments import ENVIRONMENTS

    inner, given = parameters.parse(text, "environment", ENVIRONMENTS)
    return parameters.format(inner, given, ENVIRONMENTS[inner].parameters)


def _mirror(horizon: int | None, of: str) -> Table:
    from jaxprivrl.environments import ENVIRONMENTS

    inner, given = parameters.parse(of, "environment", ENVIRONMENTS)
    environment = ENVIRONMENTS[inner]
    table = environment.table(horizon, **parameters.resolve(environment.parameters, given, inner))
    S = table.costs.shape[1]
    start = np.asarray(table.initial)
    return table._replace(
        costs=table.costs[:, ::-1, ::-1],
        transitions=table.transitions[:, ::-1, ::-1, ::-1],
        initial=S - 1 - start if start.ndim == 0 else start[::-1],
        ends=tuple(S - 1 - end for end in table.ends),
        support=None if table.support is None else table.support[:, ::-1, ::-1, ::-1],
        grid=None if table.grid is None else table.grid._replace(cells=table.grid.cells[::-1]),
        actions=None if table.actions is None else table.actions[::-1],
    )


MIRROR = Environment(
    "mirror",
    "Another environment with its states and actions in reverse order; a control against favoured first actions.",
    (Parameter("of", REQUIRED, "an environment with its parameters, river_swim:num_states=8", _environment, str),),
    _mirror,
)
