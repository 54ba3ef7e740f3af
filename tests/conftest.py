"""Strict settings for every test: no silent broadcasting of ranks, no silent promotion of types."""

import jax

from jaxprivrl import runtime

runtime.configure(num_devices=2)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
