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


# Left out of `make test-fast`: they compile many programs, run audits, or run whole scripts and notebooks.
SLOW = (
    "audit", "cli", "engine", "experiments", "published", "privatizers", "test_benchmarks", "test_binomial",
    "test_conformance", "test_docs", "test_lattice", "test_learners", "test_optimism", "test_plugins",
    "test_river_swim",
    "test_environment_gym", "test_environment_sepsis", "test_composition",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests of slow folders and modules, and whatever says so itself."""
    for item in items:
        if set(SLOW) & {*item.path.parent.parts[-1:], item.path.stem}:
            item.add_marker(pytest.mark.slow)
