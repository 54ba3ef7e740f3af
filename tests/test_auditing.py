"""Audits: honest mechanisms are consistent, broken ones are caught, and the bounds mean what they say.

An honest mechanism is called violated with probability at most 5 % (Clopper-Pearson at 95 %), whatever the choices made
on the separate sample; in 250 audits at other seeds it never was. The power stated for each control is how often
it was caught, at other seeds than the one tested here. All keys are fixed, so each test gives one answer for good.
"""

import json
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxprivrl import accounting, attacks, auditing, mdp, noise, precision
from jaxprivrl.accounting import Problem
from jaxprivrl.privatizers import PRIVATIZERS, NoiseStream, Privatizer, additive, exact
from jaxprivrl.privatizers.streams import local_stream, tree_stream

# One step, three users (two levels of the tree), two released families: the shortest likelihood ratios, most power.
SMALL = Problem(1, 2, 2, 3, families=2)
NOISY = [name for name in PRIVATIZERS if name != "exact"]
STREAMS = {
    "central_laplace": lambda shape: tree_stream(shape, "laplace"),
    "local_laplace": lambda shape: local_stream("laplace"),
}
DELTA = 1e-2  # of Gaussian claims: where 1e5 samples have power


@pytest.mark.parametrize("name", PRIVATIZERS)
def test_tight_is_consistent(name):
    """False alarms: at most 5 %, none in 20 seeds of each mechanism; the mean bound is 0.71 to 0.97 of the true 1."""
    result = auditing.audit(name, SMALL, 1.0, dp_delta=DELTA)
    assert result.verdict == "consistent"
    assert result.epsilon_lower_bound <= result.epsilon_accounted * (1 + 1e-6)
    assert result.power_warning is None
    if name == "exact":
        assert math.isinf(result.epsilon_claimed) and result.epsilon_lower_bound > 10
    else:
        assert result.epsilon_lower_bound > 0.5  # the attack has teeth: the true epsilon is 1


@pytest.mark.parametrize("name", NOISY)
def test_half_the_noise_is_caught(name):
    """Power: 20 of 20 seeds for each mechanism, least bound 1.41 (central_laplace) against the claim of 1."""
    result = auditing.audit(name, SMALL, 1.0, dp_delta=DELTA, noise_multiplier=0.5)
    assert result.verdict == "violated"
    assert 1.0 < result.epsilon_lower_bound <= result.epsilon_accounted


@pytest.mark.parametrize("name", ["central_laplace", "local_laplace"])
def test_printed_noise_is_caught(name):
    """Power: 20 of 20 seeds, least bound 1.66 (local, accounted 2) and 2.30 (central, accounted 3.6)."""
    result = auditing.audit(name, SMALL._replace(families=3), 1.0, calibration="printed")
    assert result.verdict == "violated"
    assert 1.0 < result.epsilon_lower_bound <= result.epsilon_accounted


def redrawn_tree(shape, parameters):
    """A tree without memory: each release draws the noise of all its live nodes anew."""
    tree = tree_stream(shape, "laplace")
    levels = shape.max_episodes.bit_length()

    def step(key, zeros, n):
        live = ((n >> jnp.arange(levels)) & 1).astype(jnp.float32)
        keys = jax.random.split(key, len(zeros))
        draws = [noise.laplace(keys[i], (levels, *x.shape)) for i, x in enumerate(zeros)]
        return zeros, tuple(jnp.sum(d * live.reshape(-1, *[1] * (d.ndim - 1)), 0) for d in draws)

    return additive(shape, parameters, NoiseStream(lambda zeros: zeros, step, tree.std, tree.bucket))


def test_tree_that_redraws_its_nodes_is_caught():
    """Seven releases hold the first user, the claim covers three nodes. Power: 10 of 10 seeds, least bound 2.23.

    The claim is (2, 0.01): many small losses add up, which a pure epsilon hides. The same audit of the true tree is
    consistent (10 of 10 seeds, largest bound 1.90).
    """
    seven = {"target": "approximate", "dp_delta": DELTA, "position": 1}
    problem = SMALL._replace(num_episodes=7)
    broken = auditing.audit("central_laplace", problem, 2.0, factory=redrawn_tree, **seven)
    assert (broken.verdict, broken.score) == ("violated", "learned")
    assert auditing.audit("central_laplace", problem, 2.0, **seven).verdict == "consistent"


@pytest.mark.parametrize("name", STREAMS)
def test_noise_shared_between_cells_is_caught(name):
    """The difference of two cells is then free of noise. Power: certain, up to a probability below 1e-9."""

    def factory(shape, parameters):
        stream = STREAMS[name](shape)

        def step(key, state, n):
            state, unit = stream.step(key, state, n)
            return state, tuple(jnp.broadcast_to(x.reshape(-1)[0], x.shape) for x in unit)

        return additive(shape, parameters, stream._replace(step=step))

    result = auditing.audit(name, SMALL, 1.0, samples=20_000, factory=factory)
    assert result.verdict == "violated" and result.epsilon_lower_bound > 5


@pytest.mark.parametrize("name", STREAMS)
def test_reused_key_is_caught(name):
    """A combination of the releases is then free of noise. Power: certain, up to a probability below 1e-9."""

    def factory(shape, parameters):
        inner = PRIVATIZERS[name](shape, parameters)

        def init(zero_counts):
            state, release = inner.init(zero_counts)
            return (jnp.zeros(2, jnp.uint32), state), release

        def step(key, state, counts):
            first, state = state
            first = jnp.where(state.num_episodes == 0, jax.random.key_data(key), first)
            state, release = inner.step(jax.random.wrap_key_data(first, impl=noise.PRNG), state, counts)
            return (first, state), release

        return Privatizer(init, step)

    result = auditing.audit(name, SMALL, 1.0, samples=20_000, factory=factory)
    assert result.verdict == "violated" and result.epsilon_lower_bound > 5


@pytest.mark.parametrize("multiplier, verdict", [(1.0, "consistent"), (0.5, "violated")])
def test_pooled_counts(multiplier, verdict):
    """All steps in one cell are the worst pair when counts are pooled; as many coordinates move as at H=1."""
    problem = Problem(2, 2, 2, 2, homogeneous=True, families=2)
    result = auditing.audit("local_laplace", problem, 1.0, noise_multiplier=multiplier)
    assert result.verdict == verdict
    assert result.epsilon_lower_bound == pytest.approx(1 / multiplier, rel=0.2)


@pytest.mark.parametrize("multiplier, verdict", [(1.0, "consistent"), (0.5, "violated")])
@pytest.mark.parametrize("name", ["local_laplace", "central_laplace", "central_batched"])
def test_centred_costs(name, multiplier, verdict):
    """Centred costs move half as far, with less noise on everything: the claim still holds, and half of it does not."""
    problem = SMALL._replace(centred_costs=True)
    result = auditing.audit(name, problem, 1.0, dp_delta=DELTA, noise_multiplier=multiplier)
    assert result.verdict == verdict
    assert result.epsilon_lower_bound > (0.5 if multiplier == 1.0 else 1.0)


def test_noise_for_centred_costs_does_not_cover_costs_as_they_are():
    """The control: 3 of 4 of the noise, calibrated for centred costs, on costs that are not. Accounted: 4/3."""
    scale = accounting.noise_scale("local_laplace", SMALL._replace(centred_costs=True), 1.0)
    multiplier = scale / accounting.noise_scale("local_laplace", SMALL, 1.0)
    assert multiplier == 0.75
    result = auditing.audit("local_laplace", SMALL, 1.0, noise_multiplier=multiplier)
    assert result.verdict == "violated" and result.epsilon_accounted == pytest.approx(4 / 3)


def test_shuffled_bits():
    """Batches of 8 users at (1, 0.01): consistent as released, and violated if the sums of a batch are shown early.

    The control shows each report at once, as if there were no shuffler: the bits alone are far from (1, 0.01).
    """
    problem = SMALL._replace(num_episodes=64)
    claim = {"dp_delta": DELTA, "position": 1, "samples": 50_000}
    assert auditing.audit("shuffle_batched", problem, 1.0, **claim).verdict == "consistent"

    def unshuffled(shape, parameters):
        return PRIVATIZERS["shuffle_batched"](shape, parameters._replace(strategy=jnp.ones_like(parameters.strategy)))

    early = auditing.audit("shuffle_batched", problem, 1.0, factory=unshuffled, **claim)
    assert early.verdict == "violated" and early.epsilon_lower_bound > 1.5


def test_warns_when_the_sample_has_no_power():
    """Two steps and three families move 12 cells: 2000 samples tell nothing, and say so."""
    result = auditing.audit("local_laplace", Problem(2, 2, 2, 2), 1.0, samples=2000, noise_multiplier=0.5)
    assert result.verdict == "consistent"
    assert result.power_bound <= 1.0
    assert "2000 samples cannot tell epsilon=1 from 2" in (result.power_warning or "")


def test_a_million_samples_take_seconds():
    start = time.process_time()
    result = auditing.audit("local_laplace", Problem(1, 6, 2, 2), 1.0, samples=1_000_000)
    assert time.process_time() - start < 30
    assert result.verdict == "consistent" and result.samples == 1_000_000
    assert result.epsilon_lower_bound > 0.9


def test_early_users_lose_more_and_every_position_is_tried():
    """User 3 of three is in one node of the tree, user 1 in two."""
    last = auditing.audit("central_laplace", SMALL, 1.0, position=3)
    assert last.position == 3 and last.epsilon_lower_bound < 0.5
    assert auditing.audit("central_laplace", SMALL, 1.0).position in (1, 2)


def test_json_and_determinism():
    first, second = (auditing.audit("local_laplace", SMALL, 1.0, samples=5000, seed=3) for _ in range(2))
    assert first == second
    facts = json.loads(json.dumps(first.to_json()))
    keys = {"epsilon_claimed", "epsilon_lower_bound", "confidence", "samples", "dp_delta", "verdict"}
    assert keys | {"power_warning", "position"} <= set(facts)
    assert (facts["epsilon_claimed"], facts["confidence"], facts["samples"], facts["dp_delta"]) == (1.0, 0.95, 5000, 0)
    assert auditing.audit("exact", SMALL, 1.0, samples=5000).to_json()["epsilon_claimed"] == "inf"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"privatizer": "local_laplac"}, "Did you mean 'local_laplace'"),
        ({"samples": 10}, "Expected samples=10 >= 1000"),
        ({"confidence": 0.3}, "Expected 0.5 < confidence=0.3 < 1"),
        ({"noise_multiplier": -1.0}, "Expected noise_multiplier=-1.0"),
        ({"epsilon": -1.0}, "Expected epsilon=-1.0 > 0"),
        ({"position": 4}, "Expected 1 <= position=4 <= 3"),
        ({"privatizer": "central_laplace", "problem": Problem(1, 2, 2, 65)}, "Expected num_episodes=65 <= 64"),
        ({"problem": Problem(1, 1, 1, 2)}, "neighbours must differ"),
        ({"calibration": "printed"}, "families=3"),
    ],
)
def test_bad_input_is_explained(change, message):
    arguments = {"privatizer": "local_laplace", "problem": SMALL, "epsilon": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        auditing.audit(**arguments)


def test_releases_that_are_not_numbers_are_refused():
    def factory(shape, parameters):
        return PRIVATIZERS["local_laplace"](shape, parameters._replace(scale=jnp.float32(jnp.inf)))

    with pytest.raises(ValueError, match="released NaN or infinity"):
        auditing.audit("local_laplace", SMALL, 1.0, samples=1000, factory=factory)


# The learner's whole output.

TWO_STATES = mdp.make(np.array([[[0.2, 0.8], [0.5, 0.1]]]), np.full((1, 2, 2, 2), 0.5), horizon=1)


@pytest.mark.parametrize("learner", ["ucb_vi", "ucb_po"])
def test_learner_fed_with_raw_counts_is_caught(learner):
    """Power: certain: the next policy is a function of the changed user's cell. False alarms: at most 5 %.

    Without a bonus a policy shows the most; a bonus is post-processing and may be any number.
    """
    arguments = (learner, "central_laplace", TWO_STATES, 1.0)
    settings = {"num_episodes": 3, "bonus_scale": 0.0, "learning_rate": 1.0, "samples": 10_000}
    assert auditing.audit_end_to_end(*arguments, **settings).verdict == "consistent"
    leak = auditing.audit_end_to_end(*arguments, **settings, factory=exact)
    assert leak.verdict == "violated" and leak.epsilon_lower_bound > 5


def test_end_to_end_checks_its_input():
    with pytest.raises(ValueError, match="Unknown learner"):
        auditing.audit_end_to_end("ucb", "central_laplace", TWO_STATES, 1.0, num_episodes=2)
    two_stages = mdp.make(np.array([[[0.2, 0.8]], [[0.5, 0.1]]]), np.ones((1, 1, 2, 1)))
    with pytest.raises(ValueError, match="cannot be pooled"):
        auditing.audit_end_to_end("ucb_vi", "central_laplace", two_stages, 1.0, num_episodes=2, homogeneous=True)


# The pieces.


@pytest.mark.parametrize("epsilon, dp_delta", [(1.0, 0.0), (0.5, 0.05)])
def test_bound_is_true_as_often_as_it_says(epsilon, dp_delta):
    """Randomised response at the boundary of (epsilon, dp_delta): P(bound > epsilon) <= 5 %; 1000 repetitions.

    With probability dp_delta the answer is given away, else it is e^epsilon times likelier to be true. A count above 70
    of 1000 has probability below 0.4 % if the rate is 5 %.
    """
    rng = np.random.default_rng(0)
    honest = dp_delta + (1 - dp_delta) / (1 + math.exp(-epsilon))
    wrong = 0
    for _ in range(1000):
        inside, out = rng.random(2000) < honest, rng.random(2000) < 1 - honest
        bound = attacks.lower_bound(inside, out, 0.05, dp_delta)
        assert bound == pytest.approx(
            float(attacks.expected_bounds(np.sum(~inside), np.sum(out), 2000, 0.05, dp_delta)), abs=1e-9
        )
        wrong += bound > epsilon
    assert wrong <= 70


def test_bound_holds_for_an_attack_chosen_elsewhere():
    """Choice and bound on separate samples of one mechanism of epsilon 1: at most 5 % of 200 audits exceed it.

    A count above 20 of 200 has probability below 0.1 % if the rate is 5 %.
    """
    rng = np.random.default_rng(1)

    def sample(n):
        return [rng.laplace(x, 1.0, (n, 1)).astype(np.float32) for x in (0.0, 1.0)]

    wrong = 0
    for _ in range(200):
        attack = max(attacks.choose(sample(2000), np.ones(1), 2000, 0.05, 0.0), key=lambda a: a.preference)
        out, inside = (attack.hits(attacks.apply(x, attack.weights)) for x in sample(2000))
        wrong += attacks.lower_bound(inside, out, 0.05, 0.0) > 1.0
    assert wrong <= 20


@pytest.mark.parametrize("stream", ["tree", "honaker", "toeplitz", "blt", "local"])
def test_noise_map_has_the_stated_variance(stream):
    name = {"tree": "central_gaussian", "local": "local_gaussian"}.get(stream, f"central_{stream}")
    B = attacks.noise_map(stream, 13, 13)
    std = precision.standard_deviation(name, SMALL._replace(num_episodes=13), 1.0, np.arange(1, 14)).transitions
    np.testing.assert_allclose(np.sqrt(np.sum(B**2, 1)), std, rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in accounting.MECHANISMS if accounting.MECHANISMS[n].noise == "gaussian"])
@pytest.mark.parametrize("position", [1, 2, 5])
def test_gaussian_score_reaches_the_accounted_distance(name, position):
    """|mean shift| / std of the exact score is the mu of the accounting for the worst user, and no more for others."""
    mech, K = accounting.MECHANISMS[name], 6
    weights = attacks.exact_weights(mech, K, K, position)[:K]
    B = attacks.noise_map(mech.stream, K, K)
    mu = np.sum(weights[position - 1 :]) / np.linalg.norm(weights @ B)
    assert mu <= mech.factor(K) * (1 + 1e-9)
    if position == 1 and mech.stream != "honaker":
        assert mu == pytest.approx(mech.factor(K), rel=1e-6)


@pytest.mark.parametrize("name", ["central_laplace", "local_laplace"])
def test_laplace_score_is_the_log_likelihood_ratio(name):
    """Score / scale = log p1 - log p0 of the independent noisy nodes (reports), from their densities."""
    K, position, scale = 5, 3, 1.7
    rng = np.random.default_rng(2)
    first = rng.integers(0, 2, (K, 2)).astype(float)
    second = first.copy()
    second[position - 1] = 1 - first[position - 1]
    views = attacks.make_views(first, second)
    releases = np.cumsum(first, 0) + scale * rng.laplace(size=(K, 2)) * 2
    got = attacks.exact_weights(accounting.MECHANISMS[name], K, K, position) @ np.asarray(
        attacks.features(views, jnp.asarray(releases, jnp.float32))
    )
    padded, want = np.concatenate([np.zeros((1, 2)), releases]), 0.0
    for k in range(1, K + 1):
        j = k & (k - 1) if name == "central_laplace" else k - 1
        for sign, users in ((-1, first), (1, second)):
            want += sign * np.sum(stats.laplace.logpdf(padded[k] - padded[j], users[j:k].sum(0), scale))
    assert got / scale == pytest.approx(want, abs=1e-5)


def test_worst_pair_moves_what_accounting_says():
    for problem in (SMALL, Problem(3, 2, 2, 2), Problem(3, 2, 2, 2, homogeneous=True), Problem(2, 2, 1, 2)):
        shape = auditing.shape_of(problem, problem.num_episodes)
        users = [auditing.pool(shape, user) for user in auditing._users(shape)]
        cells = attacks.changed_cells(users[0], users[1], problem.families)
        moved = np.concatenate([np.ravel(a - b)[list(c)] for a, b, c in zip(*users, cells, strict=True)])
        want = accounting.sensitivity(problem)
        assert np.sum(np.abs(moved)) == want.l1
        assert np.linalg.norm(moved) == pytest.approx(want.l2)
