"""The runtime of additive mechanisms: exact sums plus scaled unit noise, of the agent's releases or of the reports."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.mdp import Counts, zero_counts
from jaxprivrl.numerics.axes import add_to_rows
from jaxprivrl.privacy.laws import AdditiveLaw
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privatizers.base import (
    Clock,
    Parameters,
    Runtime,
    State,
    Totals,
    Users,
    accumulate,
    add_noise,
    derived,
    pool,
    release_view,
    true_counts,
    zero_totals,
)
from jaxprivrl.privatizers.streams import draw_like, settle, workspace
from jaxprivrl.problem import Shape

Array = jax.Array
Key = jax.Array


def runtime(privatizer: Privatizer, shape: Shape) -> Runtime:
    """Release = exact sums + scale * unit noise (sampled reports: H or H families times that).

    With two families only costs and transitions get noise of their own; visits are the noisy transitions summed over
    s2. Centred costs C - N/2 get half the noisy visits back at once, as C + noise of the costs + half that of the
    visits.

    Privacy: at the epsilon that accounting computes from the scale; `Privatizer` says of whom.
    """
    law, report, strategy = privatizer.law, privatizer.report, privatizer.strategy
    silent = not isinstance(law, AdditiveLaw)
    stream = None if silent or strategy.per_user else strategy.stream(shape, law)
    weight = np.float32(report.weight(shape))

    def init() -> tuple[State, Counts]:
        zeros = zero_counts(shape)
        unit = tuple(zeros[-shape.families :])
        seed: Any = ()
        if stream is not None:
            seed = stream.init(unit)
        elif report.step and not silent:
            seed = workspace(jax.tree.map(lambda x: x[0], unit)), unit
        elif not silent:
            seed = unit
        return State(seed, zero_totals(zeros)), zeros

    def absorb(key: Key, parameters: Parameters, state: State, users: Users) -> State:
        del parameters
        cell = accumulate(state.cell, pool(shape, users.counts))
        if silent or stream is not None:
            return State(state.seed, cell)
        assert isinstance(law, AdditiveLaw)
        if report.step:
            return State(_sampled_noise(law, shape, key, state.seed, users), cell)
        if _single(users):
            fresh = draw_like(law.sample, key, state.seed)
        else:
            fresh = draw_like(lambda k, s: law.sample_sum(k, users.number, s), key, state.seed)
        return State(jax.tree.map(jnp.add, state.seed, fresh), cell)

    def release(key: Key, parameters: Parameters, state: State, clock: Clock) -> tuple[State, Counts]:
        if silent:
            return state, derived(shape, true_counts(state.cell))
        seed, unit = state.seed, state.seed
        if stream is not None:
            seed, unit = stream.step(key, state.seed, clock.releases, parameters.data)
        elif report.step:
            unit = state.seed[1]
        noisy = _noisy(shape, parameters.scale, state.cell, unit)
        if report.step:
            noisy = jax.tree.map(lambda x: jnp.where(parameters.scale > 0, weight, np.float32(1)) * x, noisy)
        return State(seed, state.cell), derived(shape, noisy)

    return Runtime(init, absorb, release, release_view(privatizer, shape))


def _noisy(shape: Shape, scale: Array, totals: Totals, unit: tuple[Array, ...]) -> Counts:
    """Exact totals plus scaled noise of the released families; zeros for visits that are not released but derived."""
    scaled = [scale * x for x in unit]
    visits = scaled[0] if shape.families == 3 else jnp.zeros_like(totals.costs)
    costs, transitions = scaled[-2:]
    if shape.centred_costs:
        costs = costs + 0.5 * (visits if shape.families == 3 else jnp.sum(transitions, -1))
    return add_noise(totals, Counts(visits, costs, transitions))


def _sampled_noise(law: AdditiveLaw, shape: Shape, key: Key, seed: Any, users: Users) -> Any:
    """Noise on the steps (and families) that were drawn: one row of it where one user reports."""
    rows, unit = seed
    assert users.groups is not None
    parts, pooled = users.groups.shape[1], shape.num_stages == 1
    held = [users.groups[:, i if parts > 1 else 0] for i in range(len(unit))]
    if _single(users):
        fresh = draw_like(law.sample, key, jax.tree.map(lambda x: x[0], unit))
        rows, fresh = settle(rows, fresh, users.before + 1)
        masks = [jnp.any(m > 0)[None] if pooled else m > 0 for m in held]
        return rows, tuple(add_to_rows(x, y, b) for x, y, b in zip(unit, fresh, masks, strict=True))
    numbers = iter([(jnp.sum(m)[None] if pooled else m) for m in held])

    def sums(key: Key, shape: tuple[int, ...]) -> Array:
        return law.sample_sum(key, next(numbers).reshape(-1, *[1] * (len(shape) - 1)), shape)

    return rows, jax.tree.map(jnp.add, unit, draw_like(sums, key, unit))


def _single(users: Users) -> bool:
    """Whether these are known to be one user when the program is traced."""
    return isinstance(users.number, int) and users.number == 1
