"""ICU-Sepsis: its table, its values against independent computations, and the figures published with it."""

import importlib.util

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

from jaxprivrl import environments
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.environments import sepsis
from jaxprivrl.environments.summary import uniform_value

PATIENTS = 713  # states in treatment; death, survival and the end of the episode follow
ENDLESS = 400  # steps after which nobody is still in treatment, to nine digits


@pytest.fixture(scope="module")
def built():
    return environments.make("icu_sepsis", ENDLESS)


def survival(built):
    """Probability of the step into survival, [S, A], read off the transitions and not off the costs."""
    entry = built.transitions[0, :, :, sepsis.SURVIVAL].copy()
    entry[PATIENTS:] = 0.0
    return entry


def treatment(built, policy):
    """Transitions among patients' states under a policy, and what they lead to."""
    P = np.einsum("sa,sat->st", policy[:PATIENTS], built.transitions[0, :PATIENTS])
    return P[:, :PATIENTS], np.einsum("sa,sa->s", policy, survival(built))[:PATIENTS]


def endless_value(built, policy):
    """Probability of survival without a limit of time: (I - P) v = p, solved directly."""
    P, paid = treatment(built, policy)
    v = np.linalg.solve(np.eye(PATIENTS) - P, paid)
    return built.initial[:PATIENTS] @ v


def length(built, policy):
    """Expected number of steps until death or survival."""
    P, _ = treatment(built, policy)
    return built.initial[:PATIENTS] @ np.linalg.solve(np.eye(PATIENTS) - P, np.ones(PATIENTS))


def native_value(built, cost_to_go):
    return built.native.total(built.initial @ cost_to_go)


UNIFORM = np.full((716, 25), 1 / 25)


def test_the_table_is_an_mdp_that_ends(built):
    assert built.shape == (ENDLESS, 716, 25) and built.stationary and built.native == (-1.0, 1.0, ENDLESS)
    np.testing.assert_allclose(built.transitions.sum(-1), 1.0, atol=1e-12)
    assert built.initial.sum() == pytest.approx(1.0) and np.all(built.initial[PATIENTS:] == 0)
    assert built.ends == (sepsis.OVER,)
    assert np.all(built.transitions[0, PATIENTS:, :, sepsis.OVER] == 1.0)
    np.testing.assert_allclose(1 - built.costs[0], survival(built), atol=1e-12)


def test_support_is_the_published_one(built):
    np.testing.assert_array_equal(built.support, built.transitions > 0)
    assert 0.1 < built.support.mean() < 0.15


def test_uniform_value_solves_the_linear_system(built):
    ours = native_value(built, uniform_value(built))
    assert ours == pytest.approx(endless_value(built, UNIFORM), abs=1e-9)
    assert round(ours, 2) == 0.78  # as published


def test_optimal_value_solves_the_linear_program(built):
    """The least v >= 0 with v(s) >= p(s, a) + sum_s2 P(s2|s, a) v(s2), over all patients' states at once."""
    P = built.transitions[0, :PATIENTS, :, :PATIENTS].reshape(-1, PATIENTS)
    paid = survival(built)[:PATIENTS].ravel()
    # Inadmissible actions repeat the mean of the others and cannot be better than all of them: left out for speed.
    distinct = np.unique(np.hstack([P, paid[:, None], np.repeat(np.arange(PATIENTS), 25)[:, None]]), axis=0)
    P, paid, state = distinct[:, :PATIENTS], distinct[:, PATIENTS], distinct[:, -1].astype(int)
    matrix = sparse.csr_matrix(P) - sparse.csr_matrix((np.ones(len(P)), (np.arange(len(P)), state)), P.shape)
    result = linprog(built.initial[:PATIENTS] + 1e-3, matrix, -paid, bounds=(0, None), method="highs-ipm")
    assert result.status == 0, result.message
    solution = mdp_lib.solve(built.host)
    native = built.native.total(solution.v[0, :PATIENTS])
    np.testing.assert_allclose(result.x, native, atol=1e-6)
    assert round(built.initial[:PATIENTS] @ native, 2) == 0.88  # as published


def test_clinicians_and_lengths_are_as_published(built):
    clinicians = environments.clinician_policy()
    np.testing.assert_allclose(clinicians.sum(-1), 1.0)
    assert clinicians.shape == (716, 25) and np.all(clinicians >= 0)
    assert round(endless_value(built, clinicians), 2) == 0.78
    best = np.eye(25)[mdp_lib.solve(built.host).q[0].argmin(-1)]
    lengths = [length(built, policy) for policy in (UNIFORM, clinicians, best)]
    np.testing.assert_allclose(lengths, [9.45, 9.22, 10.99], rtol=0.02)  # published as means of drawn episodes


def test_patients_still_in_treatment_have_not_survived(built):
    """A shorter horizon loses exactly those who survive later."""
    values = [environments.facts(environments.make("icu_sepsis", horizon))["native_optimum"] for horizon in (1, 20)]
    assert values[0] == pytest.approx(built.initial @ survival(built).max(-1), abs=1e-12)
    assert values[1] == pytest.approx(0.792, abs=5e-4)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package icu-sepsis, .*\. Run pip install 'jaxprivrl\[envs\]'\."):
        environments.make("icu_sepsis")
