"""The two runtimes that the mechanisms share, by name: JAX is imported when one is built."""

from typing import Any

from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.problem import Shape


def additive(privatizer: Privatizer, shape: Shape) -> Any:
    """Exact sums plus `scale` times noise that does not depend on them."""
    from jaxprivrl.privatizers.additive import runtime

    return runtime(privatizer, shape)


def bits(privatizer: Privatizer, shape: Shape) -> Any:
    """Debiased sums of randomised bits."""
    from jaxprivrl.privatizers.bits import runtime

    return runtime(privatizer, shape)
