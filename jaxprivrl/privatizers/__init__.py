"""The mechanisms: one file for each family of them, and the device side that they share. PRIVATIZERS is the registry.

May import `privacy`, `problem`, `schedules`, `mdp`, `numerics`. Import members from here, and `Release`, `Users` from
`privatizers.base`, which needs JAX; the registry does not.
"""

from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privatizers.bernoulli import local_bernoulli, shuffle_bernoulli
from jaxprivrl.privatizers.exact import exact
from jaxprivrl.privatizers.local import local_gaussian, local_laplace
from jaxprivrl.privatizers.sampled import local_sampled, local_sampled_family
from jaxprivrl.privatizers.toeplitz import central_blt, central_toeplitz
from jaxprivrl.privatizers.tree import central_gaussian, central_honaker, central_laplace

PRIVATIZERS: dict[str, Privatizer] = {
    privatizer.name: privatizer
    for privatizer in (
        exact,
        central_laplace,
        local_laplace,
        central_gaussian,
        central_honaker,
        central_blt,
        central_toeplitz,
        local_gaussian,
        local_bernoulli,
        local_sampled,
        local_sampled_family,
        shuffle_bernoulli,
    )
}

__all__ = ["PRIVATIZERS", "Privatizer"]
