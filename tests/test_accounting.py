"""Every epsilon against brute force, closed forms and dp-accounting called directly."""

import functools
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from jaxprivrl import accounting, composition
from jaxprivrl.accounting import CALIBRATIONS, MECHANISMS, Problem, calibrate, guarantee, noise_scale, sensitivity

LAPLACE = composition.Law("laplace")
RIVER = Problem(horizon=20, num_states=6, num_actions=2, num_episodes=20_000)
GAUSSIAN = [name for name, mech in MECHANISMS.items() if mech.noise == "gaussian"]
NOISY = [name for name, mech in MECHANISMS.items() if mech.noise != "none"]


# Sensitivity


def _all_counts(H, S, A, homogeneous):
    """Counts of every trajectory with costs in {0, 1}: three arrays [trajectory, cells]."""
    rows = []
    for states in itertools.product(range(S), repeat=H + 1):
        for actions in itertools.product(range(A), repeat=H):
            for costs in itertools.product((0, 1), repeat=H):
                visits, cost_sums = np.zeros((H, S, A)), np.zeros((H, S, A))
                transitions = np.zeros((H, S, A, S))
                for h in range(H):
                    visits[h, states[h], actions[h]] += 1
                    cost_sums[h, states[h], actions[h]] += costs[h]
                    transitions[h, states[h], actions[h], states[h + 1]] += 1
                arrays = (visits, cost_sums, transitions)
                rows.append([(x.sum(axis=0) if homogeneous else x).ravel() for x in arrays])
    return [np.array([row[i] for row in rows]) for i in range(3)]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("neighbours", ["replace", "add_remove"])
@pytest.mark.parametrize("families", [2, 3])
@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 2, 2), (2, 3, 1), (3, 2, 1)])
def test_sensitivity_is_brute_force(centred, homogeneous, neighbours, families, sizes):
    counts = _all_counts(*sizes, homogeneous)
    if centred:
        counts[1] = counts[1] - counts[0] / 2
    differences = [x[:, None] - x[None] for x in counts] if neighbours == "replace" else [x[:, None] for x in counts]
    names = ("visits", "costs", "transitions")
    l1 = {n: np.abs(d).sum(axis=-1) for n, d in zip(names, differences, strict=True)}
    l2 = {n: np.square(d).sum(axis=-1) for n, d in zip(names, differences, strict=True)}
    released = names[3 - families :]
    result = sensitivity(Problem(*sizes, 10, homogeneous, families, centred), neighbours)
    assert set(result.per_family_l1) == set(result.per_family_l2) == set(released)
    for name in released:
        assert result.per_family_l1[name] == l1[name].max()
        assert result.per_family_l2[name] == pytest.approx(math.sqrt(l2[name].max()), rel=1e-12)
    assert result.l1 == sum(l1[name] for name in released).max()
    worst = math.sqrt(sum(l2[name] for name in released).max())
    if centred and homogeneous and families == 2 and neighbours == "replace" and sizes[0] > 1:
        assert worst <= result.l2 <= 1.2 * worst  # a bound: the moves of different steps need not add up
    else:
        assert result.l2 == pytest.approx(worst, rel=1e-12)


def test_sensitivity_of_the_paper():
    assert sensitivity(RIVER).l1 == 120 and sensitivity(RIVER).l2 == pytest.approx(10.954, abs=1e-3)
    pooled = sensitivity(RIVER._replace(homogeneous=True))
    assert pooled.l1 == 120 and pooled.per_family_l2["costs"] == pytest.approx(20 * math.sqrt(2))


@pytest.mark.parametrize("num_episodes", [1, 2, 3, 5, 8, 100])
def test_levels_are_brute_force(num_episodes):
    problem = RIVER._replace(num_episodes=num_episodes)
    member = np.zeros(num_episodes, int)  # nodes that hold each user
    for end in range(1, num_episodes + 1):
        size = end & -end  # episode `end` completes one new node per trailing zero; the stored one covers `size` users
        member[end - size : end] += 1
    assert accounting.levels("central_laplace", problem) == member.max()
    assert accounting.levels("local_laplace", problem) == accounting.levels("central_blt", problem) == 1


# Pure epsilon of Laplace noise is attained


def _worst_pair(H, homogeneous):
    """Flattened counts of two trajectories whose cells are disjoint, all costs 1."""
    S, A = 2, 2
    result = []
    for state in (0, 1):
        counts = [np.zeros((H, S, A)), np.zeros((H, S, A)), np.zeros((H, S, A, S))]
        for x in counts:
            x[(slice(None), state, state) + (state,) * (x.ndim - 3)] = 1
        result.append(np.concatenate([(x.sum(axis=0) if homogeneous else x).ravel() for x in counts]))
    return result


def _log_density(y, x, scale):
    return -np.abs(y - x).sum() / scale - y.size * math.log(2 * scale)


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("privatizer, num_episodes", [("local_laplace", 9), ("central_laplace", 9)])
def test_pure_epsilon_is_attained(privatizer, num_episodes, homogeneous):
    H = 3
    problem = Problem(H, 2, 2, num_episodes, homogeneous)
    scale = noise_scale(privatizer, problem, 0.7)
    claimed = guarantee(privatizer, problem, scale).epsilon_pure
    a, b = _worst_pair(H, homogeneous)
    users = np.tile(a, (num_episodes, 1))
    replaced = users.copy()
    replaced[0] = b
    if privatizer == "local_laplace":
        release, other = users, replaced  # every user's report
    else:  # every stored node of the tree
        ends = range(1, num_episodes + 1)
        release = np.array([users[end - (end & -end) : end].sum(axis=0) for end in ends])
        other = np.array([replaced[end - (end & -end) : end].sum(axis=0) for end in ends])
    ratio = _log_density(release, release, scale) - _log_density(release, other, scale)
    assert claimed == pytest.approx(0.7, abs=1e-12)
    assert ratio == pytest.approx(claimed, abs=1e-9)


def test_pure_epsilon_of_bits_is_attained():
    problem = Problem(3, 2, 2, 9)
    scale = noise_scale("local_bernoulli", problem, 0.7)
    a, b = _worst_pair(3, False)
    keep = 1 / (1 + math.exp(-1 / scale))
    ratio = np.log(np.where(a == b, 1.0, keep / (1 - keep))).sum()
    assert ratio == pytest.approx(guarantee("local_bernoulli", problem, scale).epsilon_pure, abs=1e-9)
    assert ratio == pytest.approx(0.7, abs=1e-9)


# Known numbers


@pytest.mark.parametrize(
    "privatizer, calibration, scale, epsilon",
    [
        ("central_laplace", "tight", 1800.0, 1.0),
        ("local_laplace", "tight", 120.0, 1.0),
        ("central_laplace", "printed", 60 * math.log(20_000), 3.0292),
        ("local_laplace", "printed", 60.0, 2.0),
        ("central_laplace", "published_code", 1.0, 1800.0),
        ("local_laplace", "published_code", 1.0, 120.0),
    ],
)
@pytest.mark.parametrize("homogeneous", [False, True])
def test_known_scales_and_epsilons(privatizer, calibration, scale, epsilon, homogeneous):
    result = calibrate(privatizer, RIVER._replace(homogeneous=homogeneous), 1.0, calibration=calibration)
    assert result.noise_scale == pytest.approx(scale, rel=1e-12)
    assert result.guarantee.epsilon_pure == pytest.approx(epsilon, rel=1e-4)
    assert result.guarantee.holds is (calibration == "tight")
    assert result.guarantee.epsilon_at_delta[1e-5] < epsilon


def test_composed_laplace_is_far_below_its_pure_epsilon():
    assert guarantee("central_laplace", RIVER, 1800.0).epsilon_at_delta[1e-5] == pytest.approx(0.0702, abs=1e-4)
    pooled = guarantee("central_laplace", RIVER._replace(homogeneous=True), 1800.0).epsilon_at_delta[1e-5]
    assert pooled == pytest.approx(0.3553, abs=1e-4)  # about five times as much


# Privacy loss distributions


@pytest.mark.parametrize("loss", [1e-3, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("dp_delta", [1e-5, 1e-2])
def test_one_laplace_coordinate_has_a_closed_form(loss, dp_delta):
    exact = max(loss + 2 * math.log1p(-dp_delta), 0.0)
    found = composition.epsilon_at(LAPLACE, 1, loss, dp_delta)
    assert exact - 1e-9 <= found <= exact + 2e-3 * loss
    problem = Problem(1, 1, 1, 5, families=2)  # add_remove: two coordinates, local
    pair = guarantee("local_laplace", problem, 1 / loss, dp_deltas=(dp_delta,), neighbours="add_remove")
    assert pair.epsilon_pure == pytest.approx(2 * loss) and pair.epsilon_at_delta[dp_delta] <= 2 * loss


@pytest.mark.parametrize(
    "privatizer, problem, neighbours, coordinates, shift",
    [
        ("central_laplace", RIVER, "replace", 2 * 20 * 3 * 15, 1),
        ("central_laplace", RIVER._replace(homogeneous=True), "replace", 2 * 3 * 15, 20),
        ("central_laplace", RIVER._replace(homogeneous=True), "add_remove", 3 * 15, 20),
        ("local_laplace", RIVER._replace(families=2), "replace", 2 * 20 * 2, 1),
        ("local_laplace", RIVER, "add_remove", 20 * 3, 1),
        ("local_sampled", RIVER, "replace", 6, 1),
        ("local_sampled", RIVER._replace(homogeneous=True, families=2), "add_remove", 2, 1),
    ],
)
@pytest.mark.parametrize("pure", [0.5, 20.0])
def test_laplace_agrees_with_dp_accounting(privatizer, problem, neighbours, coordinates, shift, pure):
    scale = coordinates * shift / pure
    loss = pure / coordinates
    direct = pld.from_laplace_mechanism(scale, sensitivity=shift, value_discretization_interval=loss / 30)
    expected = direct.self_compose(coordinates).get_epsilon_for_delta(1e-5)
    result = guarantee(privatizer, problem, scale, neighbours=neighbours)
    assert result.epsilon_pure == pytest.approx(pure, rel=1e-12)
    assert result.epsilon_at_delta[1e-5] == pytest.approx(expected, rel=2e-3)
    assert result.epsilon_at_delta[1e-5] >= expected * (1 - 1e-3)  # the finer grid is not above ours


@pytest.mark.parametrize("split", [(0.5, 0.5), (0.3, 0.7), (0.2, 0.3, 0.5)])
@pytest.mark.parametrize("total", [0.4, 3.0])
def test_one_large_shift_dominates_its_split(split, total):
    interval = total / 2_000
    parts = [pld.from_laplace_mechanism(1 / (total * w), value_discretization_interval=interval) for w in split]
    composed = parts[0]
    for part in parts[1:]:
        composed = composed.compose(part)
    for epsilon in np.linspace(0, total, 9)[:-1]:
        single = -math.expm1((epsilon - total) / 2)
        assert composed.get_delta_for_epsilon(epsilon) <= single + 1e-5


@pytest.mark.parametrize("n, loss", [(1, 0.4), (3, 0.7), (8, 0.1)])
def test_randomized_response_is_exact(n, loss):
    keep = 1 / (1 + math.exp(-loss))
    for epsilon in (0.0, 0.3 * n * loss, 0.9 * n * loss):
        delta = 0.0
        for flips in itertools.product((0, 1), repeat=n):
            k = sum(flips)
            p, q = keep ** (n - k) * (1 - keep) ** k, keep**k * (1 - keep) ** (n - k)
            delta += max(p - math.exp(epsilon) * q, 0.0)
        assert composition.randomized_response_delta(n, loss, epsilon) == pytest.approx(delta, rel=2e-6, abs=2e-12)


@pytest.mark.parametrize("others", [0, 1, 3, 5])
@pytest.mark.parametrize("ones", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n, batch, loss", [(1, 6, 1.2), (2, 6, 0.8), (3, 4, 2.0)])
def test_shuffled_bits_are_covered_by_the_sum_itself(n, batch, loss, ones, others):
    """The exact delta of the sums of a batch's bits, whatever the others' true bits, lies below the accounted one."""
    true = [round(ones * (batch - 1))] * n if others == 0 else [(others + i) % batch for i in range(n)]
    flip = 1 / (1 + math.exp(loss))

    def law(bit, k):
        """Distribution of the sum of the reported bits: k of the others hold a one."""
        pmf = np.array([flip, 1 - flip]) if bit else np.array([1 - flip, flip])
        for i in range(batch - 1):
            pmf = np.convolve(pmf, [flip, 1 - flip] if i < k else [1 - flip, flip])
        return pmf

    one, zero = (functools.reduce(np.multiply.outer, [law(bit, k) for k in true]) for bit in (1, 0))
    for epsilon in (0.0, 0.2 * n * loss, 0.6 * n * loss):
        exact = float(np.sum(np.maximum(one - math.exp(epsilon) * zero, 0.0)))
        bound = composition.delta(composition.Law("bernoulli", batch), n, loss, epsilon)
        alone = composition.delta(composition.Law("bernoulli"), n, loss, epsilon)
        assert exact <= bound <= alone * (1 + 2e-2) + 1e-9


def test_shuffling_amplifies_as_a_batch_grows():
    """The loss that a bit may have grows with its batch, and each is used up: a little more breaks the target."""
    losses = []
    for batch in (1, 50, 2_500):
        law = composition.Law("bernoulli", batch)
        losses.append(composition.loss_for(law, 80, 1.0, 1e-5))
        assert composition.delta(law, 80, losses[-1], 1.0) <= 1e-5
        assert composition.delta(law, 80, 1.01 * losses[-1], 1.0) > 1e-5
    assert losses[0] < 0.05 and losses[2] > 1 and sorted(losses) == losses


def test_shuffled_noise_is_near_that_of_one_central_release():
    """80 bits at (1, 1e-5): the sum of a batch carries 1.24 times the noise of one Gaussian release, L2^2 = 80."""
    problem = RIVER._replace(families=2)
    scale = noise_scale("shuffle_batched", problem, 1.0, dp_delta=1e-5)
    flip = 1 / (1 + math.exp(1 / scale))
    std = math.sqrt(2_500 * flip * (1 - flip)) / (1 - 2 * flip)
    central = accounting.gaussian_multiplier(1.0, 1e-5) * math.sqrt(80)
    assert std / central == pytest.approx(1.236, abs=0.01)


def test_bits_agree_with_dp_accounting():
    n, epsilon_of_a_bit = 120, 1 / 60
    flip = 1 / (1 + math.exp(epsilon_of_a_bit))
    direct = pld.from_randomized_response(2 * flip, 2, value_discretization_interval=epsilon_of_a_bit / 1000)
    expected = direct.self_compose(n).get_epsilon_for_delta(1e-5)
    found = guarantee("local_bernoulli", RIVER, 60.0)
    assert found.epsilon_pure == pytest.approx(2.0)
    assert found.epsilon_at_delta[1e-5] == pytest.approx(expected, rel=5e-3)
    assert found.epsilon_at_delta[1e-5] <= expected * (1 + 1e-6)  # ours is exact, theirs rounds up


def test_the_closed_form_takes_over_without_a_jump(monkeypatch):
    n, loss = 2_000, 2e-5
    grid = composition.delta(LAPLACE, n, loss, 1e-3)
    monkeypatch.setattr(composition, "_MIN_LOSS", 1e-3)
    closed = composition.delta(LAPLACE, n, loss, 1e-3)
    assert grid * (1 - 1e-6) <= closed <= grid * (1 + 1e-3)


@pytest.mark.parametrize("name", ["central_laplace", "local_laplace", "local_bernoulli", "local_sampled"])
def test_approximate_never_exceeds_pure(name):
    for scale in (1e-5, 0.1, 10.0, 1e4, 1e9):
        result = guarantee(name, RIVER, scale, dp_deltas=(1e-300, 1e-9, 1e-5, 0.1))
        values = list(result.epsilon_at_delta.values())
        assert values[0] == pytest.approx(result.epsilon_pure, rel=1e-9)
        assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise([result.epsilon_pure, *values]))


# Gaussian noise


@pytest.mark.parametrize(
    "epsilon, dp_delta, expected",
    [(0.5, 1e-5, 7.03), (1, 1e-5, 3.73), (2, 1e-5, 1.99), (4, 1e-5, 1.08), (8, 1e-5, 0.60), (1, 1e-6, 4.22)],
)
def test_known_gaussian_multipliers(epsilon, dp_delta, expected):
    z = accounting.gaussian_multiplier(float(epsilon), dp_delta)
    assert z == pytest.approx(expected, abs=0.006)
    assert accounting.gaussian_delta(1 / z, epsilon) <= dp_delta
    assert accounting.gaussian_delta(1.0001 / z, epsilon) > dp_delta
    assert accounting.gaussian_epsilon(1 / z, dp_delta) == pytest.approx(epsilon, rel=1e-7)


@pytest.mark.parametrize("shift", [0.05, 0.5, 5.0])
def test_gaussian_agrees_with_dp_accounting(shift):
    direct = pld.from_gaussian_mechanism(1 / shift, value_discretization_interval=1e-4)
    assert accounting.gaussian_epsilon(shift, 1e-5) == pytest.approx(direct.get_epsilon_for_delta(1e-5), rel=1e-3)
    levels = pld.from_gaussian_mechanism(1 / shift, value_discretization_interval=1e-4).self_compose(15)
    composed = accounting.gaussian_epsilon(shift * math.sqrt(15), 1e-5)
    assert composed == pytest.approx(levels.get_epsilon_for_delta(1e-5), rel=2e-3)


@pytest.mark.parametrize(
    "privatizer, factor",
    [
        ("central_gaussian", math.sqrt(15)),
        ("central_honaker", math.sqrt(15)),
        ("central_blt", 2.0507),
        ("central_toeplitz", math.sqrt(4.219)),
        ("local_gaussian", 1.0),
    ],
)
@pytest.mark.parametrize("homogeneous", [False, True])
def test_gaussian_scales(privatizer, factor, homogeneous):
    problem = RIVER._replace(families=2, homogeneous=homogeneous)
    l2 = 20 * math.sqrt(2 * 2) if homogeneous else math.sqrt(2 * 20 * 2)
    assert noise_scale(privatizer, problem, 1.0, dp_delta=1e-5) == pytest.approx(3.7306 * l2 * factor, rel=2e-4)
    assert MECHANISMS[privatizer].factor(20_000) == pytest.approx(factor, rel=1e-4)


def test_best_counts_of_the_two_stage_axes():
    from jaxprivrl.precision import standard_deviation

    for homogeneous, expected in ((False, 141), (True, 631)):
        problem = RIVER._replace(families=2, homogeneous=homogeneous)
        scale = noise_scale("central_blt", problem, 1.0, dp_delta=1e-5)
        std = standard_deviation("central_blt", problem, scale, np.array([20_000])).costs[0]
        assert std == pytest.approx(expected, abs=1)


# Inversion, ordering, extremes


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("target", ["pure", "approximate"])
@pytest.mark.parametrize("neighbours", ["replace", "add_remove"])
@pytest.mark.parametrize("homogeneous", [False, True])
def test_scale_and_guarantee_are_inverse(name, target, neighbours, homogeneous):
    if target == "pure" and name in GAUSSIAN:
        return
    problem = RIVER._replace(homogeneous=homogeneous)
    scales = []
    for epsilon in (0.1, 1.0, 10.0):
        result = calibrate(name, problem, epsilon, target=target, neighbours=neighbours)
        held = result.guarantee
        reached = held.epsilon_pure if target == "pure" else held.epsilon_at_delta[1e-5]
        assert held.holds and reached <= epsilon * (1 + 1e-12)
        assert reached == pytest.approx(epsilon, rel=1e-4)
        scales.append(result.noise_scale)
    assert scales == sorted(scales, reverse=True)
    if target == "approximate" and name not in GAUSSIAN:
        assert all(
            s < noise_scale(name, problem, e, neighbours=neighbours) for s, e in zip(scales, (0.1, 1, 10), strict=False)
        )


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (20, 6, 2, 20_000), (500, 3, 2, 10**7)])
def test_extremes_are_finite_and_hold(name, epsilon, sizes):
    for target in ("pure", "approximate"):
        if target == "pure" and name in GAUSSIAN:
            continue
        result = calibrate(name, Problem(*sizes), epsilon, target=target)
        assert math.isfinite(result.noise_scale) and result.noise_scale > 0
        assert all(np.all(np.isfinite(row)) for row in result.precision)
        assert result.guarantee.holds
        if target == "approximate":
            assert result.guarantee.epsilon_at_delta[1e-5] <= epsilon


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_infinite_epsilon_means_no_noise(name):
    result = calibrate(name, RIVER, math.inf)
    assert result.noise_scale == 0.0 and math.isinf(result.guarantee.epsilon_pure)
    assert result.guarantee.epsilon_at_delta == {1e-5: math.inf}
    assert result.guarantee.label == "no privacy" and result.guarantee.statement.startswith("No privacy")


def test_sampling_a_step_is_paid_by_one_step():
    assert noise_scale("local_sampled", RIVER, 1.0) == 6.0
    assert noise_scale("local_sampled", RIVER._replace(homogeneous=True, families=2), 1.0) == 4.0
    result = guarantee("local_sampled", RIVER, 6.0)
    assert (result.sensitivity_l1, result.levels, result.model) == (6.0, 1, "LDP")
    # pooled counts: bits are randomised per step, before they are summed
    pooled = guarantee("local_bernoulli", RIVER._replace(homogeneous=True), 120.0)
    assert pooled.epsilon_pure == pytest.approx(1.0)
    assert pooled.epsilon_at_delta == guarantee("local_bernoulli", RIVER, 120.0).epsilon_at_delta


# What people read


def test_labels():
    labels = {
        ("central_laplace", None, "tight"): "ε=1 (JDP)",
        ("local_laplace", "approximate", "tight"): "(1, 1e-5)-LDP",
        ("central_blt", None, "tight"): "(1, 1e-5)-JDP",
        ("central_laplace", None, "published_code"): "nominal ε=1, holds: ε=1800 (published_code)",
        ("local_laplace", None, "printed"): "nominal ε=1, holds: ε=2 (printed)",
        ("exact", None, "tight"): "no privacy",
    }
    for (name, target, calibration), label in labels.items():
        assert calibrate(name, RIVER, 1.0, target=target, calibration=calibration).guarantee.label == label
    assert guarantee("central_blt", RIVER, 100.0).label.endswith(", 1e-5)-JDP")
    assert guarantee("local_laplace", RIVER, 12.0).label == "ε=10 (LDP)"


def test_statements_say_what_holds():
    honest = calibrate("central_laplace", RIVER, 1.0).guarantee.statement
    assert honest.startswith("epsilon=1 and (0.07021, 1e-5) joint differential privacy")
    assert "one user = one episode" in honest and "at most 20000 episodes" in honest
    code = calibrate("central_laplace", RIVER, 1.0, calibration="published_code").guarantee.statement
    assert code.startswith("The nominal epsilon=1 does not hold (published_code); what holds is epsilon=1800 ")
    gaussian = calibrate("local_gaussian", RIVER, 1.0).guarantee.statement
    assert gaussian.startswith("(1, 1e-5) local differential privacy")


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_json(name):
    text = json.dumps(calibrate(name, RIVER, 1.0).guarantee.to_json(), allow_nan=False)
    data = json.loads(text)
    keys = [
        "noise_scale",
        "sensitivity_l1",
        "sensitivity_l2",
        "levels",
        "epsilon_pure",
        "epsilon_at_delta",
        "model",
        "neighbours",
    ]
    assert {*keys, "calibration", "statement", "label", "unit", "max_episodes", "nominal_epsilon"} <= set(data)
    assert list(data["epsilon_at_delta"]) == ["1e-05"]
    if name in ("exact", *GAUSSIAN):
        assert data["epsilon_pure"] == "inf"
    assert data["model"] == MECHANISMS[name].trust


def test_registry_is_complete():
    central = {"central_laplace", "central_gaussian", "central_honaker", "central_blt", "central_toeplitz"}
    central |= {"central_batched"}
    local = {"local_laplace", "local_gaussian", "local_bernoulli", "local_sampled", "local_sampled_family"}
    shuffle = {"shuffle_batched"}
    assert set(MECHANISMS) == {"exact"} | central | local | shuffle
    for name, mech in MECHANISMS.items():
        assert mech.trust == {"e": "none", "c": "JDP", "l": "LDP", "s": "SDP"}[name[0]]
        assert (mech.target == "approximate") is (mech.noise == "gaussian" or mech.trust == "SDP")
        assert set(mech.calibrations) <= set(CALIBRATIONS)


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: noise_scale("central_laplace", RIVER, -1.0), r"Expected epsilon=-1.0 > 0. Use epsilon=inf for no"),
        (lambda: noise_scale("central_laplace", RIVER, math.nan), "Expected epsilon=nan > 0"),
        (lambda: noise_scale("central_laplace", RIVER, 1.0, dp_delta=0.0), "Expected 0 < dp_delta=0.0 < 1"),
        (lambda: noise_scale("central_blt", RIVER, 1.0), "central_blt has no pure epsilon. Use target='approximate'"),
        (lambda: calibrate("local_gaussian", RIVER, 1.0, target="pure"), "local_gaussian has no pure epsilon"),
        (lambda: calibrate("local_laplace", RIVER, 1.0, target="zcdp"), "Unknown target 'zcdp'. Available: approx"),
        (lambda: noise_scale("local_sampled", RIVER, 1.0, calibration="printed"), "not defined for local_sampled"),
        (lambda: noise_scale("local_laplace", RIVER, 1.0, dp_delta=1e-5, calibration="printed"), "a pure target"),
        (
            lambda: calibrate("central_laplace", RIVER._replace(num_episodes=1), 1.0, calibration="printed"),
            "has no noise at num_episodes=1",
        ),
        (lambda: calibrate("local_laplace", RIVER._replace(families=2), 1.0, calibration="printed"), "families=3"),
        (lambda: sensitivity(RIVER, "swap"), "Unknown neighbours 'swap'. Available: replace, add_remove"),
        (lambda: guarantee("central_laplace", RIVER, -2.0), "Expected noise_scale=-2.0 to be finite and >= 0"),
        (lambda: guarantee("central_laplace", RIVER, 1.0, dp_deltas=(2.0,)), "Expected 0 < dp_delta=2.0 < 1"),
        (lambda: accounting.levels("binary_tree", RIVER), "Unknown privatizer 'binary_tree'"),
        (lambda: sensitivity(RIVER._replace(num_states=1.5)), "Expected num_states=1.5 >= 1"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_tuning_script_runs():
    script = Path(__file__).parents[1] / "benchmarks" / "tune_blt.py"
    run = subprocess.run([sys.executable, str(script), "--smoke"], capture_output=True, text=True, check=True)
    rung = json.loads(run.stdout)
    assert rung["num_episodes"] == 1_000 and len(rung["decay"]) == len(rung["scale"]) == 4
    assert rung["max_error"] < 1.05 * 3.2654  # few steps already come close to the shipped optimum
