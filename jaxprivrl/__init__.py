"""jaxprivrl: differentially private tabular reinforcement learning, batched in JAX, with an epsilon that holds."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Loaded on first use, so that `jaxprivrl --help` and light imports need neither jax nor matplotlib.
_PUBLIC = {
    "MDP": "mdp",
    "Counts": "mdp",
    "make_mdp": "mdp:make",
    "Problem": "problem",
    "Shape": "problem",
    "SCHEDULES": "schedules",
    "schedule": "schedules",
    "ENVIRONMENTS": "environments",
    "river_swim": "environments",
    "random_mdp": "environments",
    "mirror": "environments",
    "from_file": "environments",
    "Privatizer": "privatizers",
    "PRIVATIZERS": "privatizers",
    "Release": "privatizers.base",
    "Learner": "learners",
    "LEARNERS": "learners",
    "POSTPROCESSORS": "learners",
    "Guarantee": "privacy.accounting",
    "calibrate": "privacy.accounting",
    "guarantee": "privacy.accounting",
    "SweepSpec": "experiments.spec",
    "run_sweep": "experiments.sweep:sweep",
    "summarize": "experiments.results",
    "save": "experiments.results",
    "load": "experiments.results",
    "plots": "experiments:plots",
    "run_audit": "audit.audit:audit",  # not "audit", which is a folder
    "check_privatizer": "experiments.conformance",
    "check_learner": "experiments.conformance",
    "check_schedule": "experiments.conformance",
    "check_environment": "experiments.conformance",
    "configure": "numerics.runtime",
    "key": "numerics.random",
}

if TYPE_CHECKING:
    from jaxprivrl.experiments.spec import SweepSpec as SweepSpec
    from jaxprivrl.learners import LEARNERS as LEARNERS
    from jaxprivrl.mdp import MDP as MDP
    from jaxprivrl.privacy.accounting import Guarantee as Guarantee
    from jaxprivrl.privatizers import PRIVATIZERS as PRIVATIZERS
    from jaxprivrl.problem import Problem as Problem


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        path, _, attribute = _PUBLIC[name].partition(":")
        module = importlib.import_module(f"jaxprivrl.{path}")
        found = getattr(module, attribute or name, None)
        return importlib.import_module(f"jaxprivrl.{path}.{attribute}") if found is None else found
    try:
        return importlib.import_module(f"jaxprivrl.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'jaxprivrl' has no attribute '{name}'") from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
