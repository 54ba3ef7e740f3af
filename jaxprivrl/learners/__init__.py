"""Learners: from releases to policies. Their only data input is `Release`, so privacy is post-processing.

May import `privatizers.base`, `mdp`, `problem`, `numerics`. Import the registry and the protocol from here.
"""

from jaxprivrl.learners.base import Hyper, Info, Learner, Metric, Plan, Steps
from jaxprivrl.learners.dp_ucb_vi import dp_ucb_vi
from jaxprivrl.learners.ldp_obi import ldp_obi
from jaxprivrl.learners.postprocess import POSTPROCESSORS
from jaxprivrl.learners.pucb import pucb
from jaxprivrl.learners.ucb import ucb_po, ucb_vi
from jaxprivrl.learners.ucb_vi_azar import ucb_vi_bernstein, ucb_vi_hoeffding

LEARNERS: dict[str, Learner] = {
    learner.name: learner for learner in (ucb_vi, ucb_po, pucb, ldp_obi, dp_ucb_vi, ucb_vi_hoeffding, ucb_vi_bernstein)
}

__all__ = ["LEARNERS", "POSTPROCESSORS", "Hyper", "Info", "Learner", "Metric", "Plan", "Steps"]
