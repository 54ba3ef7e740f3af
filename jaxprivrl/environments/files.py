"""Environments from .npz files."""

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxprivrl.environments.base import Environment, Grid, Table
from jaxprivrl.parameters import REQUIRED, Parameter

if TYPE_CHECKING:
    from jaxprivrl.mdp import MDP

NEEDED = ("costs", "transitions", "initial")
OPTIONAL = ("horizon", "support", "cells", "native")


def from_file(path: str | Path, *, horizon: int | None = None, bernoulli: bool = False) -> "MDP":
    """Reads an MDP from an .npz file with costs[H|1,S,A], transitions[H|1,S,A,S], initial and, maybe, horizon.

    A horizon passed here wins over one in the file only if the file has none; if both are given they must agree.
    """
    from jaxprivrl import mdp

    arrays, horizon = _read(Path(path), horizon)
    return mdp.make(*(arrays[name] for name in NEEDED), horizon=horizon, bernoulli=bernoulli)


def _file(horizon: int | None, path: str) -> Table:
    """What `from_file` reads, and what a file may say beyond it.

    support: bool[H|1, S, A, S], the transitions that are possible as far as anybody knows in advance.
    cells: int[S, 2], row and column of every state on a picture; negative for a state that is not drawn.
    native: [scale, offset]: a step of cost c is offset + scale * c in the units of the problem.
    """
    mdp = from_file(path, horizon=horizon)
    arrays, _ = _read(Path(path), horizon)
    H, S, A = mdp.shape
    support, native = arrays.get("support"), arrays.get("native", np.array([1.0, 0.0]))
    if support is not None and (support.shape[0] not in (1, H) or support.shape[1:] != (S, A, S)):
        raise ValueError(f"support in '{path}' has shape {support.shape}; expected [{H} or 1, {S}, {A}, {S}].")
    if native.shape != (2,) or not np.all(np.isfinite(native)) or native[0] == 0:
        raise ValueError(
            f"native in '{path}' is {native.tolist()}; expected [scale, offset] with a scale that is not 0."
        )
    return Table(
        H,
        arrays["costs"],
        arrays["transitions"],
        arrays["initial"],
        (float(native[0]), float(native[1])),
        support=None if support is None else support.astype(bool),
        grid=_grid(path, arrays["cells"], S) if "cells" in arrays else None,
    )


def _grid(path: str, places: np.ndarray, num_states: int) -> Grid:
    """The picture on which every state has its row and column."""
    if places.shape != (num_states, 2) or places.dtype.kind not in "iu":
        raise ValueError(f"cells in '{path}' has shape {places.shape}; expected whole numbers [{num_states}, 2].")
    rows, columns = (int(n) + 1 for n in places.max(0))
    return Grid(rows, columns, np.where(places.min(1) < 0, -1, places[:, 0] * columns + places[:, 1]))


def _read(path: Path, horizon: int | None) -> tuple[dict[str, np.ndarray], int | None]:
    """Arrays of the file and the horizon, as far as file or caller name one."""
    if not path.is_file():
        raise ValueError(f"No file '{path}'. Pass an .npz with arrays costs, transitions and initial.")
    arrays = _read_arrays(path)
    for name in (*NEEDED, *OPTIONAL):
        if name in arrays and arrays[name].dtype.kind not in "fiub":
            raise ValueError(f"'{name}' in '{path}' has dtype {arrays[name].dtype}; expected numbers.")
    stored = arrays.get("horizon")
    if stored is None:
        return arrays, horizon
    if stored.ndim > 0:
        raise ValueError(f"horizon in '{path}' has shape {stored.shape}; expected one whole number.")
    if horizon is not None and horizon != stored.item():
        raise ValueError(f"Horizon {horizon} disagrees with horizon {stored.item()} in '{path}'. Drop one of them.")
    return arrays, stored.item()


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


FILE = Environment(
    "file",
    "An MDP from an .npz file: costs, transitions, initial, and maybe horizon, support, cells and native.",
    (Parameter("path", REQUIRED, "an .npz file", kind=str),),
    _file,
)
