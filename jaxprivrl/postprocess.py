"""Post-processing of releases: free of privacy cost, composable with every learner."""

from collections.abc import Callable

from jaxprivrl.learners import Learner
from jaxprivrl.mdp import Shape
from jaxprivrl.privatizers import Release

Postprocessor = Callable[[Shape, Release], Release]


def none(shape: Shape, release: Release) -> Release:
    """The release as it is."""
    del shape
    return release


def compose(shape: Shape, postprocessor: Postprocessor, learner: Learner) -> Learner:
    """The learner, fed with post-processed releases."""
    return Learner(learner.init, lambda key, state, release: learner.step(key, state, postprocessor(shape, release)))


POSTPROCESSORS: dict[str, Postprocessor] = {"none": none}

# What each learner's paper says; "none" where it says nothing.
DEFAULTS: dict[str, str] = {}
