"""The paper's privatizers, and the one without noise."""

import jax.numpy as jnp

from jaxprivrl.mdp import Counts, Shape
from jaxprivrl.privatizers.base import NoiseParameters, NoiseStream, Privatizer, additive
from jaxprivrl.privatizers.streams import local_stream, tree_stream


def exact(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """No noise: the non-private baselines are the learners fed by this.

    Privacy: none.
    """
    del parameters
    zero = jnp.zeros(())
    silent = NoiseStream(
        init=lambda zeros: (),
        step=lambda key, state, n: (state, None),
        std=lambda n: zero,
        bucket=lambda n: jnp.zeros((), jnp.int32),
    )
    nothing = jnp.zeros((1,))
    return additive(shape, NoiseParameters(zero, Counts(nothing, nothing, nothing)), silent)


def central_laplace(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """The paper's Central-Privatizer: a binary tree with Laplace noise on every counter.

    Release after n episodes = true counts + scale * sum of the noises of the live nodes (the ones in the binary
    expansion of n). One fresh draw per counter per episode: that of the node that episode n completes.

    Privacy: JDP through the billboard lemma, at the epsilon that `accounting` computes from the scale, for one user
      = one episode and at most as many episodes as it was calibrated for.
    Reference: Chowdhury and Zhou, AAAI 2022, Central-Privatizer; Chan, Shi and Song 2011 for the counter.
    """
    return additive(shape, parameters, tree_stream(shape, "laplace"))


def local_laplace(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """The paper's Local-Privatizer: each user adds fresh Laplace noise to every entry of what it reports.

    Release after n episodes = sum of n reports = true counts + scale * sum of n unit draws. The two sums are kept
    apart only so that the true counts stay exact and the noise is shared over epsilons; report n is the difference
    of the releases n and n - 1.

    Privacy: LDP at the epsilon that `accounting` computes from the scale, for each user's whole episode.
    Reference: Chowdhury and Zhou, AAAI 2022, Local-Privatizer.
    """
    return additive(shape, parameters, local_stream("laplace"))
