"""jaxprivrl: differentially private tabular reinforcement learning, batched in JAX, with an epsilon that holds."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Loaded on first use, so that `jaxprivrl --help` and light imports need neither jax nor matplotlib.
_PUBLIC = {
    "MDP": "mdp",
    "Counts": "mdp",
    "Shape": "mdp",
    "make_mdp": "mdp:make",
    "ENVIRONMENTS": "environments",
    "river_swim": "environments",
    "random_mdp": "environments",
    "mirror": "environments",
    "from_file": "environments",
    "Privatizer": "privatizers",
    "Release": "privatizers",
    "NoiseParameters": "privatizers",
    "PRIVATIZERS": "privatizers",
    "Learner": "learners",
    "Hyperparameters": "learners",
    "LEARNERS": "learners",
    "POSTPROCESSORS": "postprocess",
    "Problem": "accounting",
    "Guarantee": "accounting",
    "calibrate": "accounting",
    "guarantee": "accounting",
    "simulate": "simulation",
    "SweepSpec": "sweep",
    "run_sweep": "sweep:sweep",
    "summarize": "results",
    "save": "results",
    "load": "results",
    "audit": "auditing",
    "configure": "runtime",
    "key": "noise",
}

if TYPE_CHECKING:
    from jaxprivrl.accounting import Guarantee as Guarantee
    from jaxprivrl.accounting import Problem as Problem
    from jaxprivrl.learners import LEARNERS as LEARNERS
    from jaxprivrl.mdp import MDP as MDP
    from jaxprivrl.privatizers import PRIVATIZERS as PRIVATIZERS
    from jaxprivrl.sweep import SweepSpec as SweepSpec


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        module, _, attribute = _PUBLIC[name].partition(":")
        return getattr(importlib.import_module(f"jaxprivrl.{module}"), attribute or name)
    try:
        return importlib.import_module(f"jaxprivrl.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'jaxprivrl' has no attribute '{name}'") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
