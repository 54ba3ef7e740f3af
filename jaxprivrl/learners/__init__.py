"""Learners: from releases to policies. Their only data input is `Release`, so privacy is post-processing."""

from jaxprivrl.learners.base import Hyperparameters, Learner, LearnerFactory, default_learning_rate
from jaxprivrl.learners.ucb import ucb_po, ucb_vi

LEARNERS: dict[str, LearnerFactory] = {"ucb_vi": ucb_vi, "ucb_po": ucb_po}

__all__ = ["LEARNERS", "Hyperparameters", "Learner", "LearnerFactory", "default_learning_rate", "ucb_po", "ucb_vi"]
