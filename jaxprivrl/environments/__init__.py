"""Environments: problems to learn, as tables of costs and transitions; ENVIRONMENTS is the registry.

Import from here only what `__all__` names. Imports nothing of the package but `mdp`, `parameters` and the checks.
Adding one is a file with an `Environment` and a line in the registry.
"""

from jaxprivrl import parameters
from jaxprivrl.environments.base import Affine, Built, Environment, Grid, Table, rescale
from jaxprivrl.environments.chains import DOUBLE_CHAIN, LOCK, RIVER_SWIM, river_swim
from jaxprivrl.environments.deep_sea import DEEP_SEA
from jaxprivrl.environments.files import FILE, from_file
from jaxprivrl.environments.grids import FOUR_ROOMS_WORLD, GRID_WORLD
from jaxprivrl.environments.gym_tables import ANY_GYM, CLIFF_WALKING, FROZEN_LAKE_WORLD, TAXI_WORLD
from jaxprivrl.environments.mirrored import MIRROR, mirror
from jaxprivrl.environments.operations import INVENTORY, QUEUE
from jaxprivrl.environments.randoms import GARNET, RANDOM, random_mdp
from jaxprivrl.environments.sepsis import ICU_SEPSIS, clinician_policy
from jaxprivrl.environments.summary import facts

__all__ = [
    "ENVIRONMENTS",
    "Affine",
    "Built",
    "Environment",
    "Grid",
    "Table",
    "clinician_policy",
    "facts",
    "from_file",
    "make",
    "mirror",
    "random_mdp",
    "rescale",
    "river_swim",
]

ENVIRONMENTS: dict[str, Environment] = {
    environment.name: environment
    for environment in (
        RIVER_SWIM,
        DEEP_SEA,
        DOUBLE_CHAIN,
        LOCK,
        FOUR_ROOMS_WORLD,
        GRID_WORLD,
        GARNET,
        INVENTORY,
        QUEUE,
        RANDOM,
        MIRROR,
        FILE,
        FROZEN_LAKE_WORLD,
        CLIFF_WALKING,
        TAXI_WORLD,
        ANY_GYM,
        ICU_SEPSIS,
    )
}


def make(text: str, horizon: int | None = None, bernoulli: bool = False) -> Built:
    """The environment that `name:param=value,...` names.

    >>> make("deep_sea:size=4").shape
    (4, 11, 2)
    """
    name, given = parameters.parse(text, "environment", ENVIRONMENTS)
    return ENVIRONMENTS[name].make(horizon, bernoulli, **given)
