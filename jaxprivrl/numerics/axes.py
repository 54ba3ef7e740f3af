"""What keeps `vmap` fast: the batch axis stays last, so that innermost loops run over the runs of a batch.

`vmap` moves batch axes to the front at scans, at random draws and wherever two ranks meet; each step of a loop then
works on short, strided rows, and updates in place become transposed copies. `vmap_last` is a `vmap` that never moves
them; `batch_last` and `stage_scan` keep them in place under the ordinary one. Without `vmap` they are the identity and
`lax.scan`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.api_util import debug_info
from jax.core import ShapedArray
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, jaxpr_as_fun
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

    def batch(args: tuple[Any, ...], dims: tuple[Any, ...]) -> tuple[Array, int]:
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


def on_leading_axes(name: str, fn: Callable[..., Array]) -> Callable[..., Array]:
    """`fn(*arrays)` with the batch axes of its arrays last under `vmap`, for an `fn` that acts on leading axes alone.

    The arrays of a call have the same batch axes, or none; `fn` sees them as trailing axes, and may use every trick
    that needs whole batches, as types of another width or loops whose rows are batches.
    """
    bound = _primitive(name, lambda *args: fn(*args[:-1]))
    return lambda *arrays: bound(*arrays, jnp.zeros((), jnp.int32))


_identity = _primitive("batch_last", lambda x, index: x)
_read = _primitive("read_slot", lambda x, i: jax.lax.dynamic_index_in_dim(x, i, keepdims=False))
_row = _primitive("read_row", lambda x, i: jax.lax.dynamic_index_in_dim(x, i, 1, keepdims=False))
_rows = _primitive("read_rows", lambda x, rows: jnp.take(x, rows, axis=0, mode="clip"))
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


def read_row(tree: Any, i: Array) -> Any:
    """Row i of the second axis of every array of a pytree."""
    return jax.tree.map(lambda x: _row(x, i), tree)


def read_rows(x: Array, rows: Array) -> Array:
    """The rows of the first axis that i32[n] lists, one after the other."""
    return _rows(x, rows)


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
    def rule(axis_size: int, in_batched: list[Any], carry: Any, constants: Any) -> tuple[Any, Any]:
        # custom_vmap hands over batched arrays with the batch axis first; moving it last cancels in XLA.
        carry_batched, constants_batched = in_batched
        carry = jax.tree.map(
            lambda x, b: jnp.moveaxis(x, 0, -1) if b else jnp.broadcast_to(x[..., None], (*x.shape, axis_size)),
            carry, carry_batched,
        )  # fmt: skip
        constants = jax.tree.map(lambda x, b: jnp.moveaxis(x, 0, -1) if b else x, constants, constants_batched)
        axes = jax.tree.map(lambda b: -1 if b else None, constants_batched)
        batched = vmap_last(body, (-1, None, axes), axis_size=axis_size)
        outputs = stage_scan(batched, carry, constants, num_stages, reverse=reverse)
        first = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), outputs)
        return first, jax.tree.map(lambda _: True, first)

    return batch_last(scan(carry, constants))


def vmap_last(
    fn: Callable[..., Any], in_axes: Any, out_axes: Any = -1, *, axis_size: int | None = None
) -> Callable[..., Any]:
    """`jax.vmap`, with the batch axis last in every array between inputs and outputs, and in the outputs.

    Args:
      fn: a pure function of arrays.
      in_axes: batch axis of each argument, an int or None, or a pytree prefix of them, as for `vmap`.
      out_axes: -1 or None for each output, or a pytree prefix of them; None asserts that it is not batched.
      axis_size: size of the batch, if no argument is batched.
    """

    def batched(*args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)
        axes = _leaf_axes(in_axes, args)
        size = axis_size
        if size is None:
            size = next(x.shape[a] for x, a in zip(flat, axes, strict=True) if a is not None)
        flat = [
            x if a is None or a % x.ndim == x.ndim - 1 else jnp.moveaxis(x, a, -1)
            for x, a in zip(flat, axes, strict=True)
        ]
        alone = [
            jax.ShapeDtypeStruct(x.shape if a is None else x.shape[:-1], x.dtype)
            for x, a in zip(flat, axes, strict=True)
        ]
        closed, shapes = jax.make_jaxpr(lambda *xs: fn(*jax.tree.unflatten(tree, xs)), return_shape=True)(*alone)
        lanes = [(x, a is not None) for x, a in zip(flat, axes, strict=True)]
        outputs = []
        out_tree = jax.tree.structure(shapes)
        for (x, is_batched), axis in zip(_evaluate(closed, lanes, size), _leaf_axes(out_axes, shapes), strict=True):
            if axis is None and is_batched:
                raise ValueError("An output depends on the batch, expected none with out_axes=None. Use -1.")
            outputs.append(x if axis is None or is_batched else _spread(x, size))
        return jax.tree.unflatten(out_tree, outputs)

    return batched


Lane = tuple[Any, bool]  # a value, and whether its last axis is the batch

# Primitives that act entry by entry, and those that act on leading axes alone, whose parameters need no change.
_UNCHANGED = frozenset(
    """abs add and atan2 cbrt ceil clz convert_element_type cos div eq erf erf_inv exp exp2 expm1 floor ge gt
    integer_pow is_finite le log log1p logistic lt max min mul ne neg nextafter not or population_count pow rem round
    rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sqrt square stop_gradient sub tan tanh xor
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin squeeze split""".split()
)
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}


def _evaluate(closed: ClosedJaxpr, lanes: list[Lane], size: int) -> list[Lane]:
    """Evaluates a jaxpr on lanes, some of which are batched along their last axis."""
    environment: dict[Any, Lane] = {v: (c, False) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)}
    environment.update(zip(closed.jaxpr.invars, lanes, strict=True))

    def read(v: Any) -> Lane:
        return (v.val, False) if isinstance(v, Literal) else environment[v]

    for eqn in closed.jaxpr.eqns:
        environment.update(zip(eqn.outvars, _apply(eqn, [read(v) for v in eqn.invars], size), strict=True))
    return [read(v) for v in closed.jaxpr.outvars]


def _apply(eqn: JaxprEqn, lanes: list[Lane], size: int) -> list[Lane]:
    """One equation on lanes. What has no rule here goes through `vmap`, from the last axis to the last axis."""
    name, params, values = eqn.primitive.name, eqn.params, [x for x, _ in lanes]
    if not any(b for _, b in lanes):
        return [(x, False) for x in _alone(eqn)(*values)]
    if name in _CALLS:
        return _evaluate(params[_CALLS[name]], lanes, size)
    if name == "cond" and not lanes[0][1]:
        return _choose(params["branches"], lanes[0][0], lanes[1:], size)
    if name == "while" and (repeated := _repeat(eqn, lanes, size)) is not None:
        return repeated
    shapes = [np.shape(x)[: np.ndim(x) - b] for x, b in lanes]
    changed: dict[str, Any] | None = None
    if name in _UNCHANGED or (name == "select_n" and len(set(shapes)) == 1):
        full = max(shapes, key=len)
        values = [_fit(lane, shape, full, size) for lane, shape in zip(lanes, shapes, strict=True)]
        changed = {}
    elif len(lanes) == 1 and name == "broadcast_in_dim":
        changed = {
            "shape": (*params["shape"], size),
            "broadcast_dimensions": (*params["broadcast_dimensions"], len(params["shape"])),
        }
    elif len(lanes) == 1 and name == "reshape" and params["dimensions"] is None:
        changed = {"new_sizes": (*params["new_sizes"], size)}
    elif name == "transpose":
        changed = {"permutation": (*params["permutation"], len(params["permutation"]))}
    elif name == "slice":
        strides = params["strides"]
        changed = {
            "start_indices": (*params["start_indices"], 0),
            "limit_indices": (*params["limit_indices"], size),
            "strides": None if strides is None else (*strides, 1),
        }
    if changed is None:
        axes = tuple(-1 if b else None for _, b in lanes)
        return [(x, True) for x in jax.vmap(_alone(eqn), in_axes=axes, out_axes=-1, axis_size=size)(*values)]
    out = eqn.primitive.bind(*values, **{**params, **changed})
    return [(x, True) for x in (out if eqn.primitive.multiple_results else [out])]


def _choose(branches: tuple[ClosedJaxpr, ...], index: Array, lanes: list[Lane], size: int) -> list[Lane]:
    """A `cond` whose index is not batched stays one: a lane's branch is every lane's branch."""
    values, is_batched = [x for x, _ in lanes], [b for _, b in lanes]
    depends: list[set[bool]] = []  # for each output, whether a branch makes it depend on the batch

    def evaluate(branch: ClosedJaxpr, values: tuple[Any, ...]) -> list[Lane]:
        return _evaluate(branch, list(zip(values, is_batched, strict=True)), size)

    def probe(*values: Any) -> list[list[Any]]:
        results = [evaluate(branch, values) for branch in branches]
        depends.extend({b for _, b in outputs} for outputs in zip(*results, strict=True))
        return [[x for x, _ in outputs] for outputs in results]

    jax.eval_shape(probe, *values)

    def run(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *values: [
            _spread(x, size) if any(d) and not b else x
            for (x, b), d in zip(evaluate(branch, values), depends, strict=True)
        ]

    outputs = jax.lax.switch(index, [run(branch) for branch in branches], *values)
    return [(x, any(d)) for x, d in zip(outputs, depends, strict=True)]


def _repeat(eqn: JaxprEqn, lanes: list[Lane], size: int) -> list[Lane] | None:
    """A `while` loop of as many rounds for every lane stays one; None if its condition depends on the batch."""
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    tests, bodies = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    of_test, of_body, carry = lanes[:tests], lanes[tests : tests + bodies], lanes[tests + bodies :]
    is_batched = [b for _, b in carry]

    def run(closed: ClosedJaxpr, constants: list[Lane], values: list[Any]) -> list[Lane]:
        return _evaluate(closed, [*constants, *zip(values, is_batched, strict=True)], size)

    def depends(closed: ClosedJaxpr, constants: list[Lane]) -> list[bool]:
        """Whether each output depends on the batch, if the carry does as `is_batched` says."""
        found: list[bool] = []

        def probe(values: list[Any]) -> list[Any]:
            outputs = run(closed, constants, values)
            found.extend(b for _, b in outputs)
            return [x for x, _ in outputs]

        jax.eval_shape(probe, spread())
        return found

    def spread() -> list[Any]:
        return [_spread(x, size) if b and not was else x for (x, was), b in zip(carry, is_batched, strict=True)]

    # What a round makes depend on the batch does so from the start.
    while (after := [a or b for a, b in zip(is_batched, depends(body, of_body), strict=True)]) != is_batched:
        is_batched = after
    if any(depends(test, of_test)):
        return None

    def step(values: list[Any]) -> list[Any]:
        outputs = zip(run(body, of_body, values), is_batched, strict=True)
        return [_spread(x, size) if b and not was else x for (x, was), b in outputs]

    values = jax.lax.while_loop(lambda values: run(test, of_test, values)[0][0], step, spread())
    return list(zip(values, is_batched, strict=True))


_DEBUG_INFO = debug_info("vmap_last", vmap_last, (None, None), {})  # a jaxpr may not be without one


def _alone(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    """An equation as a function of its inputs."""
    names = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    info = _DEBUG_INFO._replace(arg_names=("",) * len(names), result_paths=("",) * len(eqn.outvars))
    fn = jaxpr_as_fun(ClosedJaxpr(Jaxpr((), names, eqn.outvars, [eqn], eqn.effects, info), ()))

    def call(*values: Any) -> list[Any]:
        given = {v: x for v, x in zip(eqn.invars, values, strict=True) if not isinstance(v, Literal)}
        return fn(*(given[v] for v in names))

    return call


def _fit(lane: Lane, shape: tuple[int, ...], full: tuple[int, ...], size: int) -> Array:
    """An operand of an entry-wise operation: batched like the others, or a number that all entries share."""
    x, is_batched = lane
    if len(shape) == len(full):
        return x if is_batched else _spread(x, size)
    return jax.lax.broadcast_in_dim(x, (*full, size), (len(full),)) if is_batched else x


def _spread(x: Any, size: int) -> Array:
    x = jnp.asarray(x)
    return jax.lax.broadcast_in_dim(x, (*x.shape, size), tuple(range(x.ndim)))


def _leaf_axes(axes: Any, tree: Any) -> list[Any]:
    """The axis of every leaf of a tree, from a prefix of the tree."""

    def is_leaf(x: Any) -> bool:
        return x is None

    return jax.tree.leaves(jax.tree.broadcast(axes, tree, is_leaf=is_leaf), is_leaf=is_leaf)
