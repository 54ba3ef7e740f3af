"""The batch-last primitives change layouts under vmap, never results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprivrl.numerics.axes import at_stage, batch_last, read_row, read_slot, stage_scan, vmap_last, write_slot

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


FUNCTIONS = {
    "entries of other ranks": lambda x, y, t: jnp.maximum(0.0, x * y[None, :] + t),
    "number over entries": lambda x, y, t: jnp.exp(x - t) / (1.0 + jnp.abs(t)),
    "reductions": lambda x, y, t: (jnp.sum(x, 0) * y, jnp.max(x, -1), jnp.argmin(x, 1), jnp.min(y)),
    "shapes": lambda x, y, t: (x.reshape(-1), x.T, x[1:, ::2], jnp.squeeze(x[:1], 0), jnp.broadcast_to(y, (2, 4))),
    "choices": lambda x, y, t: jnp.where(x > t, x, y[None, :]),
    "one choice for all": lambda x, y, t: jax.lax.select(t > 0, x, -x),
    "clip": lambda x, y, t: (jnp.clip(x, -0.5, t), jax.lax.clamp(jnp.float32(-0.5), x, t)),
    "calls": lambda x, y, t: (jax.jit(jnp.tanh)(x) + t, jax.nn.softmax(x), jax.nn.relu(y)),
    "gather": lambda x, y, t: x[(t > 0).astype(jnp.int32), jnp.argmax(y)],
    "dot and cumulated": lambda x, y, t: (x @ y, jnp.cumsum(x, 0), jnp.concatenate([x, x * t])),
    "loop": lambda x, y, t: jax.lax.fori_loop(0, 3, lambda i, z: z * t + y[i], x),
    "as many rounds for all": lambda x, y, t: jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * t + y[c[0]], c[1].sum()), (0, x, jnp.float32(0))
    ),
    "rounds of each lane": lambda x, y, t: jax.lax.while_loop(
        lambda c: (c[0] < 5) & (c[1].max() < 2.0 + t), lambda c: (c[0] + 1, c[1] + y[None, :] ** 2), (0, x)
    ),
    "branch": lambda x, y, t: jax.lax.cond(t > 0, lambda z: z + 1.0, lambda z: z * 2.0, x),
    "scan over stages": lambda x, y, t: stage_scan(body, y, (y * t, x), 3),
    "slots": lambda x, y, t: (
        read_slot(x, jnp.int32(1)),
        read_row(x, jnp.int32(3)),
        write_slot(x, y * t, jnp.int32(2)),
        batch_last(x),
    ),
    "no input": lambda x, y, t: (jnp.arange(3.0), t),
    "sort": lambda x, y, t: jnp.sort(x, -1) + t,
}


def leaves_close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 1, None), (None, None, 0), (-1, 0, 0), (1, -1, None)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_last_is_vmap(name, axes):
    keys = jax.random.split(KEY, 3)
    args = []
    for key, shape, axis in zip(keys, [(3, 4), (4,), ()], axes, strict=True):
        full = list(shape)
        if axis is not None:
            full.insert(axis if axis >= 0 else len(full) + 1 + axis, 5)
        args.append(jax.random.normal(key, tuple(full)))
    fn = FUNCTIONS[name]
    ours = vmap_last(fn, axes)
    theirs = jax.vmap(fn, in_axes=axes, out_axes=-1)(*args)
    leaves_close(ours(*args), theirs)
    leaves_close(jax.jit(ours)(*args), theirs)


def test_vmap_last_nests():
    x, y = jax.random.normal(KEY, (3, 4, 5, 6)), jax.random.normal(KEY, (4, 5))
    fn = FUNCTIONS["entries of other ranks"]
    t = jnp.arange(6.0)

    def nested(vmap):
        inner = vmap(fn, (-1, -1, None))
        return vmap(inner, (-1, None, -1))

    theirs = nested(lambda f, axes: jax.vmap(f, in_axes=axes, out_axes=-1))(x, y, t)
    leaves_close(nested(vmap_last)(x, y, t), theirs)


def test_vmap_last_takes_prefixes_and_unbatched_outputs():
    def fn(tree, n):
        return {"sum": tree["a"] + tree["b"] * n}, n + 1

    out, n = vmap_last(fn, ({"a": -1, "b": None}, None), (-1, None))(
        {"a": jnp.ones((2, 3)), "b": jnp.ones(2)}, jnp.float32(2)
    )
    assert out["sum"].shape == (2, 3) and n.shape == ()
    with pytest.raises(ValueError, match="out_axes"):
        vmap_last(fn, ({"a": -1, "b": None}, None), (None, None))(
            {"a": jnp.ones((2, 3)), "b": jnp.ones(2)}, jnp.float32(2)
        )
