"""Slow, plain NumPy reference of private tabular episodic reinforcement learning.

Everything is written with loops over (h, s, a, s2) in float64, straight from the printed formulas. Nothing is drawn
at random here: every uniform, Laplace or Gaussian draw is an argument. Nothing of the package under test is imported.

Conventions
-----------
* Axis order [h, s, a, s2]. Code index h = 0..H-1 stands for the papers' step h+1, so the papers' H-h+1 is `H - h`.
* Statistics are triples (visits [Hs,S,A], costs [Hs,S,A], transitions [Hs,S,A,S]); Hs is H, or 1 when the counts are
  pooled over the steps of an episode. A stage axis of length 1 is used for every h.
* Costs are in [0, 1]. Reward papers are translated once by r = 1 - c: the learner receives cost sums C~ and visits N~,
  so its reward sum is R~ = N~ - C~; its values are rewards-to-go and its policy is an argmax.
* Ties: among the m best actions (exact float equality), in index order, the one with number min(floor(u*m), m-1).
* Categorical draw with uniform u: the number of cumulative sums of p that are <= u, capped at n-1.
* Bernoulli cost with mean c and uniform u: 1 if u < c, else 0.

Sources
-------
Chowdhury and Zhou, "Differentially Private Regret Minimization in Episodic Markov Decision Processes" (CZ);
Vietri et al., "Private Reinforcement Learning with PAC and Regret Guarantees" (PUCB); Garcelon et al., "Local
Differential Privacy for Regret Minimization in Reinforcement Learning" (LDP-OBI); Qiao and Wang, "Near-Optimal
Differentially Private Reinforcement Learning" (DP-UCBVI); Azar, Osband and Munos, "Minimax Regret Bounds for
Reinforcement Learning" (UCBVI); Chan, Shi and Song, "Private and Continual Release of Statistics" (binary mechanism);
Honaker, "Efficient Use of Differentially Private Binary Trees"; Fichtenberger, Henzinger and Upadhyay, "Constant
Matters" (square-root factorization); Dvijotham et al., "Efficient and Near-Optimal Noise Generation for Streaming
Differential Privacy" (BLT).
"""

from reference.learners import (
    DP_UCBVI,
    LDP_OBI,
    PUCB,
    UCBPO,
    UCBVI,
    UCBVI_BF,
    UCBVI_CH,
    Learner,
    mean_and_variance,
    next_state_counts,
)
from reference.mdp import (
    break_tie,
    brute_force_optimal_value,
    categorical,
    greedy_policy,
    optimal_values,
    policy_values,
    regret,
    rollout,
    stage,
)
from reference.postprocess import (
    clip,
    project,
    projection_program,
)
from reference.reports import (
    Exact,
    LocalLaplace,
    Privatizer,
    counts_of_episode,
)
from reference.toeplitz import (
    MatrixMechanism,
    blt_decoder,
    blt_matrix,
    blt_noise,
    prefix_sum_matrix,
    sqrt_toeplitz_matrix,
    sqrt_toeplitz_noise,
    toeplitz_matrix,
)
from reference.tree import (
    HonakerTree,
    TreeGaussian,
    TreeLaplace,
    honaker_variance,
    trailing_zeros,
)

__all__ = [
    "DP_UCBVI",
    "LDP_OBI",
    "PUCB",
    "UCBPO",
    "UCBVI",
    "UCBVI_BF",
    "UCBVI_CH",
    "Exact",
    "HonakerTree",
    "Learner",
    "LocalLaplace",
    "MatrixMechanism",
    "Privatizer",
    "TreeGaussian",
    "TreeLaplace",
    "blt_decoder",
    "blt_matrix",
    "blt_noise",
    "break_tie",
    "brute_force_optimal_value",
    "categorical",
    "clip",
    "counts_of_episode",
    "greedy_policy",
    "honaker_variance",
    "mean_and_variance",
    "next_state_counts",
    "optimal_values",
    "policy_values",
    "prefix_sum_matrix",
    "project",
    "projection_program",
    "regret",
    "rollout",
    "sqrt_toeplitz_matrix",
    "sqrt_toeplitz_noise",
    "stage",
    "toeplitz_matrix",
    "trailing_zeros",
]
