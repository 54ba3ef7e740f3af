"""What the learners of papers with rewards share: the translation from costs, and optimistic planning.

Costs are translated once, reward = 1 - cost: the reward sum of a cell is R~ = N~ - C~, values are rewards to go, and
policies are greedy for the largest value. `Info.values` turns rewards to go back into costs to go.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxprivrl.learners.base import Info, Plan, Steps, greedy
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import at_stage, stage_scan
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Shape

Array = jax.Array
Key = jax.Array

# The papers set no lower limit, and noisy counts may be signed, so values could leave float32 within H stages. Both
# limits lie far outside anything that a release within its error bounds leads to.
LARGEST_VALUE = 1e6
LEAST_VISITS = 1e-6  # fewer visits than this, and more than none, count as so many


class Model(NamedTuple):
    """Private empirical model in reward form, by stage; a cell without data has `rewards` at the ceiling, `inverse` 0.

    Attributes:
      rewards: f32[H|1, S, A], mean reward plus the part of the bonus that depends on neither stage nor value.
      transitions: f32[H|1, S, A, S], N~(s, a, s2), not yet divided by the visits.
      inverse: f32[H|1, S, A], 1 / visits.
    """

    rewards: Array
    transitions: Array
    inverse: Array


class VarianceModel(NamedTuple):
    """A Model with a bonus that follows the variance of the next value (Bernstein).

      bonus = (in `model`) + spread_scale sqrt(Var_P(V)/N) + weight_scale sqrt(sum_s2 P(s2) w_{h+1}(s2)/N)

    Attributes:
      model: the Model.
      weights: f32[H|1, S], w_h(s): how uncertain the value of a state still is, at most H^2.
      spread_scale, weight_scale: f32[], factors of the two roots, bonus_scale included.
    """

    model: Model
    weights: Array
    spread_scale: Array
    weight_scale: Array


def worst_error(error: Counts) -> Array:
    """The single E of papers that bound all families alike: the largest of the three, f32[]."""
    return jnp.maximum(jnp.maximum(error.visits, error.costs), error.transitions)


def next_value(model: Model, value: Array, h: Array) -> tuple[Array, Array]:
    """Mean reward plus sum_s2 P(s2) V(s2), and 1/N, of stage h; f32[S, A] each."""
    rewards, transitions, inverse = (at_stage(x, h) for x in model)
    return rewards + inverse * jnp.sum(transitions * value[None, None, :], -1), inverse


def variance_q(shape: Shape, constants: VarianceModel, value: Array, h: Array) -> Array:
    """Q_h = min(H, rewards + P V + bonus) with the bonus of a VarianceModel; f32[S, A].

    The weights speak of the next stage, so their term is absent at the last one. Signed P may make the variance or
    the weighted sum negative: they count as 0 then.
    """
    rewards, transitions, inverse = (at_stage(x, h) for x in constants.model)
    P = transitions * inverse[..., None]
    mean = jnp.clip(jnp.sum(P * value[None, None, :], -1), -LARGEST_VALUE, LARGEST_VALUE)
    variance = jnp.sum(P * jnp.square(value[None, None, :] - mean[..., None]), -1)
    variance = jnp.clip(variance, 0.0, LARGEST_VALUE**2)
    weights = jnp.where(h < shape.horizon - 1, at_stage(constants.weights, h + 1), 0.0)
    weighted = jnp.maximum(jnp.sum(P * weights[None, None, :], -1), 0.0)
    bonus = constants.spread_scale * jnp.sqrt(variance * inverse)
    bonus = bonus + constants.weight_scale * jnp.sqrt(weighted * inverse)
    return jnp.minimum(rewards + mean + bonus, float(shape.horizon))


def optimistic_learner(
    shape: Shape,
    estimate: Callable[[Release], Any],
    q_function: Callable[[Any, Array, Array], Array],
    *,
    monotone: bool = False,
    steps_left: bool = False,
) -> Steps:
    """Optimistic value iteration with rewards: V_h = max_a Q_h, greedy, ties uniform for each (h, s) and episode.

    Args:
      shape: static sizes.
      estimate: `(release) -> constants`, all that planning reads.
      q_function: `(constants, V_{h+1}, h) -> Q_h`, f32[S, A]; it must not close over arrays that may be batched.
      monotone: Q_h = min(Q_h of the previous episode, Q_h); the state is then Q, f32[H, S, A], at first H.
      steps_left: V_h = min(H - h + 1, V_h) for the paper's 1-based h.
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions

    def init() -> Any:
        return jnp.full((H, S, A), float(H)) if monotone else ()

    def best(q: Array, h: Array) -> Array:
        value = jnp.maximum(jnp.max(q, -1), -LARGEST_VALUE)
        return jnp.minimum(value, (H - h).astype(jnp.float32)) if steps_left else value

    def plan(state: Any, release: Release) -> Array:
        def backward(value: Array, h: Array, data: Any) -> tuple[Array, Array]:
            constants, previous = data
            q = q_function(constants, value, h)
            if monotone:
                q = jnp.minimum(q, at_stage(previous, h))
            return best(q, h), q

        return stage_scan(backward, jnp.zeros(S), (estimate(release), state), H, reverse=True)[1]

    def step(key: Key, state: Any, release: Release) -> tuple[Any, Plan, Info]:
        q = plan(state, release)
        stages = jnp.arange(H)[:, None]
        values = (H - stages).astype(jnp.float32) - best(q, stages)
        return q if monotone else state, Plan(greedy(-q, random.uniform(key, (H, S)))), Info(values)

    return Steps(init, step)
