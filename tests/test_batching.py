"""The batch-last primitives change layouts under vmap, never results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprivrl.batching import at_stage, batch_last, read_slot, stage_scan, write_slot

KEY = jax.random.key(0)
H = 5


def body(carry, h, constants):
    gain, table = constants
    out = carry * gain + at_stage(table, h)
    return out, out - h.astype(jnp.float32)


def by_lax(carry, constants, reverse):
    return jax.lax.scan(lambda c, h: body(c, h, constants), carry, jnp.arange(H), reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axes", [(0, (None, 0)), (None, (0, None)), (0, (0, 0)), (None, (None, 0))])
def test_stage_scan_is_lax_scan(axes, reverse):
    k1, k2, k3 = jax.random.split(KEY, 3)
    carry = jax.random.normal(k1, (7, 3) if axes[0] == 0 else (3,))
    gain = jax.random.normal(k2, (7, 3) if axes[1][0] == 0 else (3,))
    table = jax.random.normal(k3, (7, H, 3) if axes[1][1] == 0 else (H, 3))
    ours = jax.jit(jax.vmap(lambda c, k: stage_scan(body, c, k, H, reverse=reverse), in_axes=axes))
    lax = jax.vmap(lambda c, k: by_lax(c, k, reverse), in_axes=axes)
    for a, b in zip(
        jax.tree.leaves(ours(carry, (gain, table))), jax.tree.leaves(lax(carry, (gain, table))), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_stage_scan_under_two_vmaps():
    k1, k2, k3 = jax.random.split(KEY, 3)
    carry, gain, table = (
        jax.random.normal(k1, (4, 2, 3)),
        jax.random.normal(k2, (2, 3)),
        jax.random.normal(k3, (4, H, 3)),
    )

    def batched(scan):
        inner = jax.vmap(scan, in_axes=(0, (0, None)))
        return jax.vmap(inner, in_axes=(0, (None, 0)))(carry, (gain, table))

    ours = batched(lambda c, k: stage_scan(body, c, k, H))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(batched(lambda c, k: by_lax(c, k, False))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_stage_axis_of_length_one_serves_every_stage():
    x = jnp.arange(6.0).reshape(1, 6)
    for h in (0, 1, 17):
        np.testing.assert_array_equal(at_stage(x, jnp.int32(h)), x[0])


@pytest.mark.parametrize("index_batched", [False, True])
def test_slots_under_vmap(index_batched):
    x = jax.random.normal(KEY, (6, 4, 3))
    rows = jax.random.normal(jax.random.key(1), (6, 3))
    i = jnp.arange(6) % 4 if index_batched else jnp.int32(2)
    axis = 0 if index_batched else None
    read = jax.vmap(read_slot, in_axes=(0, axis))(x, i)
    wrote = jax.vmap(write_slot, in_axes=(0, 0, axis))(x, rows, i)
    for lane in range(6):
        j = int(i[lane]) if index_batched else 2
        np.testing.assert_array_equal(read[lane], x[lane, j])
        np.testing.assert_array_equal(wrote[lane], x[lane].at[j].set(rows[lane]))


def test_unbatched_row_into_batched_slots():
    x, row = jax.random.normal(KEY, (6, 4, 3)), jnp.arange(3.0)
    wrote = jax.vmap(write_slot, in_axes=(0, None, None))(x, row, jnp.int32(1))
    np.testing.assert_array_equal(wrote, x.at[:, 1].set(row[None]))


def test_batch_last_is_the_identity():
    x = {"a": jax.random.normal(KEY, (5, 2)), "b": jnp.arange(5.0)}
    for f in (batch_last, jax.jit(batch_last), jax.vmap(batch_last), jax.vmap(batch_last, in_axes=0, out_axes=0)):
        for a, b in zip(jax.tree.leaves(f(x)), jax.tree.leaves(x), strict=True):
            np.testing.assert_array_equal(a, b)
