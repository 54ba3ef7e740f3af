"""Privatizers: from the sensitive counts of users' episodes to the releases that a learner may see."""

from jaxprivrl.privatizers.base import (
    NoiseParameters,
    NoiseStream,
    Privatizer,
    PrivatizerFactory,
    PrivatizerState,
    Release,
    Totals,
    additive,
    batched,
)
from jaxprivrl.privatizers.gaussian import (
    central_batched,
    central_blt,
    central_gaussian,
    central_honaker,
    central_toeplitz,
    host_strategy,
    local_gaussian,
)
from jaxprivrl.privatizers.laplace import central_laplace, exact, local_laplace
from jaxprivrl.privatizers.reports import local_bernoulli, local_sampled, local_sampled_family, shuffle_batched

PRIVATIZERS: dict[str, PrivatizerFactory] = {
    "exact": exact,
    "central_laplace": central_laplace,
    "local_laplace": local_laplace,
    "central_gaussian": central_gaussian,
    "central_honaker": central_honaker,
    "central_blt": central_blt,
    "central_toeplitz": central_toeplitz,
    "central_batched": central_batched,
    "local_gaussian": local_gaussian,
    "local_bernoulli": local_bernoulli,
    "local_sampled": local_sampled,
    "local_sampled_family": local_sampled_family,
    "shuffle_batched": shuffle_batched,
}

__all__ = [
    "PRIVATIZERS",
    "NoiseParameters",
    "NoiseStream",
    "Privatizer",
    "PrivatizerFactory",
    "PrivatizerState",
    "Release",
    "Totals",
    "additive",
    "batched",
    "central_batched",
    "central_blt",
    "central_gaussian",
    "central_honaker",
    "central_laplace",
    "central_toeplitz",
    "exact",
    "host_strategy",
    "local_bernoulli",
    "local_gaussian",
    "local_laplace",
    "local_sampled",
    "local_sampled_family",
    "shuffle_batched",
]
