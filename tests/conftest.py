"""Strict settings for every test: no silent broadcasting of ranks, no silent promotion of types."""

import gc

import jax
import pytest

from jaxprivrl.engine import run
from jaxprivrl.numerics import runtime

runtime.configure(num_devices=2)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Compiled programs of one module are of no use to the next: a worker that keeps them grows to gigabytes."""
    yield
    run._compile.cache_clear()
    jax.clear_caches()
    gc.collect()
