"""Environments: named MDPs, random ones, and MDPs from files; ENVIRONMENTS is the registry."""

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from jaxprivrl import mdp as mdp_lib
from jaxprivrl.mdp import MDP


def river_swim(horizon: int = 20, num_states: int = 6, *, bernoulli: bool = False) -> MDP:
    """RiverSwim: action 0 swims left and succeeds, action 1 swims right against the current.

    Rewards 0.005 at (first state, left) and 1 at (last state, right), turned into costs 1 - reward. Right moves
    up with probability 0.6 from the first state and 0.35 from an inner one, where it also falls back with 0.05;
    at the last state it holds with 0.6.

    Reference: Strehl and Littman 2008; Osband et al. 2013; the probabilities are those of the experiments of
    Chowdhury and Zhou, AAAI 2022.
    """
    if num_states < 2:
        raise ValueError(f"Expected num_states={num_states} >= 2. RiverSwim needs a left and a right bank.")
    S = num_states
    rewards = np.zeros((1, S, 2))
    rewards[0, 0, 0], rewards[0, S - 1, 1] = 0.005, 1.0
    P = np.zeros((1, S, 2, S))
    for s in range(S):
        P[0, s, 0, max(s - 1, 0)] = 1.0
    P[0, 0, 1, :2] = 0.4, 0.6
    for s in range(1, S - 1):
        P[0, s, 1, s - 1 : s + 2] = 0.05, 0.6, 0.35
    P[0, S - 1, 1, S - 2 :] = 0.4, 0.6
    return mdp_lib.make(1.0 - rewards, P, 0, horizon=horizon, bernoulli=bernoulli)


def random_mdp(
    key: jax.Array,
    horizon: int,
    num_states: int,
    num_actions: int,
    *,
    homogeneous: bool = False,
    concentration: float = 1.0,
    bernoulli: bool = False,
) -> MDP:
    """A random MDP: uniform costs, Dirichlet(concentration) transition rows and first state; consumes the key."""
    H, S, A = 1 if homogeneous else horizon, num_states, num_actions
    key_cost, key_row, key_initial = jax.random.split(key, 3)
    costs = jax.random.uniform(key_cost, (H, S, A))
    rows = jax.random.dirichlet(key_row, np.full(S, concentration, np.float32), (H, S, A))
    initial = jax.random.dirichlet(key_initial, np.ones(S, np.float32))
    rows64, initial64 = np.asarray(rows, np.float64), np.asarray(initial, np.float64)
    return mdp_lib.make(
        costs,
        rows64 / rows64.sum(-1, keepdims=True),
        initial64 / initial64.sum(),
        horizon=horizon,
        bernoulli=bernoulli,
    )


def mirror(mdp: MDP) -> MDP:
    """The same MDP with states and actions in reverse order: no learner's regret may depend on the order."""
    return mdp._replace(
        costs=mdp.costs[:, ::-1, ::-1], transitions=mdp.transitions[:, ::-1, ::-1, ::-1], initial=mdp.initial[::-1]
    )


def from_file(path: str | Path, *, horizon: int | None = None, bernoulli: bool = False) -> MDP:
    """Reads an MDP from an .npz file with costs[H|1,S,A], transitions[H|1,S,A,S], initial and, maybe, horizon.

    A horizon passed here wins over one in the file only if the file has none; if both are given they must agree.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"No file '{path}'. Pass an .npz with arrays costs, transitions and initial.")
    arrays = _read_arrays(path)
    for name in ("costs", "transitions", "initial", "horizon"):
        if name in arrays and arrays[name].dtype.kind not in "fiub":
            raise ValueError(f"'{name}' in '{path}' has dtype {arrays[name].dtype}; expected numbers.")
    stored = arrays.get("horizon")
    if stored is not None:
        if stored.ndim > 0:
            raise ValueError(f"horizon in '{path}' has shape {stored.shape}; expected one whole number.")
        stored = stored.item()
    if horizon is not None and stored is not None and horizon != stored:
        raise ValueError(f"Horizon {horizon} disagrees with horizon {stored} in '{path}'. Drop one of them.")
    return mdp_lib.make(
        arrays["costs"],
        arrays["transitions"],
        arrays["initial"],
        horizon=horizon if horizon is not None else stored,
        bernoulli=bernoulli,
    )


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; one that is damaged, or another kind of file, raises ValueError."""
    damage = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)
    with path.open("rb") as file:
        try:
            data = np.load(file, allow_pickle=False)
        except damage as error:
            raise ValueError(
                f"'{path}' is not an .npz file. Write one with numpy.savez(costs=, transitions=, initial=)."
            ) from error
        if not isinstance(data, np.lib.npyio.NpzFile):
            raise ValueError(f"'{path}' holds one array, not an .npz of named arrays. Write it with numpy.savez.")
        for name in ("costs", "transitions", "initial"):
            if name not in data.files:
                raise ValueError(f"'{path}' has no array '{name}'; it holds {sorted(data.files)}. Add it.")
        try:
            return {name: np.asarray(data[name]) for name in data.files}
        except damage as error:
            if "allow_pickle" in str(error):
                raise ValueError(f"'{path}' holds Python objects; expected plain number arrays.") from error
            raise ValueError(f"'{path}' is damaged ({error}); expected a whole .npz file. Write it again.") from error


ENVIRONMENTS: dict[str, Callable[..., MDP]] = {"river_swim": river_swim}
