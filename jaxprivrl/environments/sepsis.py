"""ICU-Sepsis: treating sepsis in intensive care, a benchmark estimated from hospital records."""

import importlib.util
from pathlib import Path

import numpy as np

from jaxprivrl.environments.base import Environment, Table, rescale

DEATH, SURVIVAL, OVER = 713, 714, 715


def _dynamics(*names: str) -> tuple[np.ndarray, ...]:
    """Arrays of the package's data file; the package itself is never imported, for it pulls in the legacy gym."""
    spec = importlib.util.find_spec("icu_sepsis")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ValueError(
            "icu_sepsis needs the package icu-sepsis, which is missing. Run pip install 'jaxprivrl[envs]'."
        )
    path = Path(folders[0]) / "envs" / "assets" / "dynamics.npz"
    if not path.is_file():
        raise ValueError(f"'{path}' is missing; expected the data of icu-sepsis 2. Run pip install 'jaxprivrl[envs]'.")
    with np.load(path, allow_pickle=False) as data:
        return tuple(np.asarray(data[name]) for name in names)


def _icu_sepsis(horizon: int | None) -> Table:
    """716 states, of which 713 are clusters of patients' states, and 25 actions: 5 x 5 levels of two treatments.

    The step into survival (state 714) pays 1, everything else nothing; death (713) and survival lead to state 715,
    which stands for the end of the episode. Actions that clinicians hardly took in a state have the mean of the
    others' transitions there, as in the benchmark. A patient who is still in treatment after H steps counts as not
    survived: with H = 20 that leaves an optimal value of 0.792, with H = 200 the 0.875 of endless episodes.

    The public support is that of the published table: it tells something about the hospital's patients, nothing about
    the users of a simulation.

    Reference: Choudhary et al., ICU-Sepsis: A Benchmark MDP Built from Real Medical Data, RLC 2024.
    """
    P, paid, initial = _dynamics("tx_mat", "r_mat", "d_0")
    costs, native = rescale(np.einsum("sat,sat->sa", P, paid)[None], best=1.0, worst=0.0)
    return Table(horizon or 20, costs, P[None], initial, native, (OVER,), P[None] > 0)


def clinician_policy() -> np.ndarray:
    """What clinicians did, f64[S, A], rows sum to one; uniform in the three states after the end of treatment."""
    (policy,) = _dynamics("expert_policy")
    total = policy.sum(-1, keepdims=True)
    return np.where(total > 0, policy / np.where(total > 0, total, 1.0), 1.0 / policy.shape[1])


ICU_SEPSIS = Environment(
    "icu_sepsis",
    "Treating sepsis in intensive care, estimated from hospital records: 716 states, 25 actions.",
    (),
    _icu_sepsis,
)
