"""How the noise of one counter runs over the releases: what a strategy must know about itself.

Host side. Releases are prefix sums A x of the leaves x plus noise B z, A = B C: a leaf enters C x + z, which is what
privacy is accounted for, through one column of C. A leaf is an epoch of users, or, where users add noise themselves,
one user. Members live in `privatizers`, one file each.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jaxprivrl.problem import Shape


class Norms(NamedTuple):
    """Largest norms of a column of C: how far one leaf moves C x, in units of its own move."""

    l1: float
    l2: float


class NoiseStream(NamedTuple):
    """Data-independent noise on a running count, at unit scale.

    Attributes:
      init: `(zeros) -> state` for a tuple of arrays of counters.
      step: `(key, state, j, data) -> (state, noise)`: the noise of release j, from 1, like `zeros`; it follows the key,
        or, where noise is made for a block of releases, the key of the step that starts the block.
    """

    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any, Any], tuple[Any, Any]]


class Strategy(abc.ABC):
    """Noise of one counter over J releases.

    Attributes:
      per_user: whether each user adds noise of its own to what it reports (a leaf is a user), or the agent to its
        releases (a leaf is an epoch).
      summed: whether the noise of a release is a sum of whole draws, no weights.
      block: releases whose noise is made at once.
    """

    per_user: ClassVar[bool] = False
    summed: ClassVar[bool]
    block: ClassVar[int] = 1

    def __new__(cls, *args: Any, **kwargs: Any) -> "Strategy":
        """Names the attribute a strategy leaves out; abstract methods are named by Python itself."""
        if not hasattr(cls, "summed"):
            raise TypeError(f"Strategy {cls.__name__} has no summed; expected True or False. State it in its class.")
        return super().__new__(cls)

    def data(self, num_leaves: int) -> Any:
        """Numbers that depend on the number of leaves, a NamedTuple of f64 arrays: data of a program, not its shape."""
        del num_leaves
        return ()

    @abc.abstractmethod
    def norms(self, num_leaves: int) -> Norms:
        """Largest column norms of C."""

    def levels(self, num_leaves: int) -> int:
        """Released sums that one leaf is part of, where C is made of such sums; else 1. Said in a guarantee only."""
        del num_leaves
        return 1

    @abc.abstractmethod
    def units(self, xp: Any, data: Any, j: Any) -> Any:
        """Variance of the noise of release j (after j leaves), in units of one draw's; elementwise, 0 for j = 0.

        Written once for host (xp = numpy, j an array) and device (xp = jax.numpy, j a number).
        """

    @abc.abstractmethod
    def worst_units(self, num_leaves: int) -> float:
        """Largest `units` of the releases that a learner uses."""

    @abc.abstractmethod
    def dense(self, num_leaves: int, num_releases: int) -> np.ndarray:
        """B, f64[num_releases, draws], of the first releases of a mechanism made for num_leaves."""

    @abc.abstractmethod
    def noisy_sums(self, num_releases: int) -> list[tuple[int, int]] | None:
        """Pairs (i, j): the sums of leaves j + 1 .. i that are released with one draw each; None if not so."""

    @abc.abstractmethod
    def stream(self, shape: Shape, law: Any) -> NoiseStream:
        """The noise as a stream, on the device."""


def as_float(xp: Any, x: Any) -> Any:
    """x in the type that host (f64) and device (f32) compute with."""
    return x.astype(np.float64 if xp is np else np.float32)
