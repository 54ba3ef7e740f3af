"""Learners: from releases to policies. Their only data input is `Release`, so privacy is post-processing."""

from jaxprivrl.learners.azar import ucb_vi_bernstein, ucb_vi_hoeffding
from jaxprivrl.learners.base import Hyperparameters, Learner, LearnerFactory, default_learning_rate
from jaxprivrl.learners.dp_ucb_vi import dp_ucb_vi
from jaxprivrl.learners.ldp_obi import ldp_obi
from jaxprivrl.learners.pucb import pucb
from jaxprivrl.learners.ucb import ucb_po, ucb_vi

LEARNERS: dict[str, LearnerFactory] = {
    "ucb_vi": ucb_vi,
    "ucb_po": ucb_po,
    "pucb": pucb,
    "ldp_obi": ldp_obi,
    "dp_ucb_vi": dp_ucb_vi,
    "ucb_vi_hoeffding": ucb_vi_hoeffding,
    "ucb_vi_bernstein": ucb_vi_bernstein,
}

__all__ = [
    "LEARNERS",
    "Hyperparameters",
    "Learner",
    "LearnerFactory",
    "default_learning_rate",
    "dp_ucb_vi",
    "ldp_obi",
    "pucb",
    "ucb_po",
    "ucb_vi",
    "ucb_vi_bernstein",
    "ucb_vi_hoeffding",
]
