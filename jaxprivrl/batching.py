"""What keeps `vmap` fast: the batch axis stays last, so that innermost loops run over the runs of a batch.

`vmap` moves batch axes to the front at scans, at random draws and wherever two positions meet; each step of a loop
then works on short, strided rows, and updates in place become transposed copies. `batch_last` and `stage_scan` undo
that. Without `vmap` they are the identity and `lax.scan`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

Array = jax.Array
Body = Callable[[Any, Array, Any], tuple[Any, Any]]


def _primitive(name: str, fn: Callable[..., Array]) -> Callable[..., Array]:
    """Makes `fn(*arrays, index)` a primitive that keeps the batch axis of its arrays last under `vmap`.

    `fn` must act on leading axes alone, so that trailing batch axes pass through it.
    """
    primitive = Primitive(name)

    def abstract_eval(*avals: Any) -> ShapedArray:
        out = jax.eval_shape(fn, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
        return ShapedArray(out.shape, out.dtype)

    def batch(args: tuple, dims: tuple) -> tuple[Array, int]:
        *arrays, index = args
        *array_dims, index_dim = dims
        if index_dim is not None:  # lanes at different places: no common slice to take
            return jax.vmap(fn, in_axes=tuple(dims))(*args), 0
        size = next(x.shape[d] for x, d in zip(arrays, array_dims, strict=True) if d is not None)
        last = [
            jnp.broadcast_to(x[..., None], (*x.shape, size)) if d is None else jnp.moveaxis(x, d, -1)
            for x, d in zip(arrays, array_dims, strict=True)
        ]
        out = primitive.bind(*last, index)
        return out, out.ndim - 1

    primitive.def_impl(jax.jit(fn))
    primitive.def_abstract_eval(abstract_eval)
    mlir.register_lowering(primitive, mlir.lower_fun(fn, multiple_results=False))
    batching.primitive_batchers[primitive] = batch
    return primitive.bind


def _like_rows(mask: Array, x: Array) -> Array:
    """A mask over the first axis of x, and over its batch axes if they have been moved last, with the rank of x."""
    return mask.reshape(mask.shape[0], *[1] * (x.ndim - mask.ndim), *mask.shape[1:])


_identity = _primitive("batch_last", lambda x, index: x)
_read = _primitive("read_slot", lambda x, i: jax.lax.dynamic_index_in_dim(x, i, keepdims=False))
_write = _primitive("write_slot", lambda x, row, i: jax.lax.dynamic_update_index_in_dim(x, row, i, 0))
_merge = _primitive("merge_rows", lambda x, index: x.reshape(-1, *x.shape[2:]))
_keep = _primitive("keep_rows", lambda x, mask, index: jnp.where(_like_rows(mask, x), x, jnp.zeros_like(x)))
_add_to = _primitive("add_to_rows", lambda x, y, mask, index: x + jnp.where(_like_rows(mask, x), y[None], 0.0))
_add = _primitive("add_multiple", lambda x, y, a: x + a * y)


def batch_last(tree: Any) -> Any:
    """Identity on every array of a pytree; under `vmap`, the batch axis becomes the last one."""
    return jax.tree.map(lambda x: _identity(x, jnp.zeros((), jnp.int32)), tree)


def read_slot(tree: Any, i: Array) -> Any:
    """Row i of the first axis of every array of a pytree."""
    return jax.tree.map(lambda x: _read(x, i), tree)


def write_slot(tree: Any, rows: Any, i: Array) -> Any:
    """The pytree with row i of the first axis of every array replaced, in place where the caller allows it."""
    return jax.tree.map(lambda x, row: _write(x, row, i), tree, rows)


def merge_rows(x: Array) -> Array:
    """The first two axes as one."""
    return _merge(x, jnp.zeros((), jnp.int32))


def keep_rows(tree: Any, mask: Array) -> Any:
    """The pytree with zeros in the rows of the first axes where the mask, bool[rows], is false."""
    return jax.tree.map(lambda x: _keep(x, mask, jnp.zeros((), jnp.int32)), tree)


def add_to_rows(tree: Any, row: Any, mask: Array) -> Any:
    """The pytree with the same row added to every row of the first axes where the mask, bool[rows], is true."""
    return jax.tree.map(lambda x, y: _add_to(x, y, mask, jnp.zeros((), jnp.int32)), tree, row)


def add_multiple(x: Any, a: Array, y: Any) -> Any:
    """x + a y for every array of two pytrees and a number a."""
    return jax.tree.map(lambda x, y: _add(x, y, a), x, y)


def at_stage(x: Array, h: Array) -> Array:
    """The row of stage h; a stage axis of length 1 serves every h."""
    return _read(x, jnp.minimum(h, x.shape[0] - 1))


def stage_scan(body: Body, carry: Any, constants: Any, num_stages: int, *, reverse: bool = False) -> tuple[Any, Any]:
    """Folds `body(carry, h, constants) -> (carry, out)` over h; returns the last carry and the outs stacked over h.

    Args:
      body: a pure function of one run; it must not close over arrays that a caller may batch.
      carry: pytree handed from stage to stage.
      constants: pytree of arrays that the body reads, usually through `at_stage`.
      num_stages: H.
      reverse: from h = H - 1 down to 0.
    """

    @custom_vmap
    def scan(carry: Any, constants: Any) -> tuple[Any, Any]:
        def step(carry: Any, h: Array) -> tuple[Any, Any]:
            return body(carry, h, constants)

        return jax.lax.scan(step, carry, jnp.arange(num_stages), reverse=reverse)

    @scan.def_vmap
    def rule(axis_size: int, in_batched: list, carry: Any, constants: Any) -> tuple[Any, Any]:
        # custom_vmap hands over batched arrays with the batch axis first; moving it last cancels in XLA.
        carry_batched, constants_batched = in_batched
        carry = jax.tree.map(
            lambda x, b: jnp.moveaxis(x, 0, -1) if b else jnp.broadcast_to(x[..., None], (*x.shape, axis_size)),
            carry, carry_batched,
        )  # fmt: skip
        constants = jax.tree.map(lambda x, b: jnp.moveaxis(x, 0, -1) if b else x, constants, constants_batched)
        axes = jax.tree.map(lambda b: -1 if b else None, constants_batched)
        batched = jax.vmap(body, in_axes=(-1, None, axes), out_axes=-1, axis_size=axis_size)
        outputs = stage_scan(batched, carry, constants, num_stages, reverse=reverse)
        first = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), outputs)
        return first, jax.tree.map(lambda _: True, first)

    return batch_last(scan(carry, constants))
