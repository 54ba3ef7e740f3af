"""What many noisy coordinates give together, against brute force, closed forms and dp-accounting called directly."""

import functools
import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from problems import PRIVATE, RIVER, by_name, on

from jaxprivrl.privacy import composition
from jaxprivrl.privacy.accounting import guarantee, noise_scale
from jaxprivrl.privacy.laws import Bits, Laplace
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import Problem

# Laplace noise


@pytest.mark.parametrize("loss", [1e-3, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("dp_delta", [1e-5, 1e-2])
def test_one_laplace_coordinate_has_a_closed_form(loss, dp_delta):
    exact = max(loss + 2 * math.log1p(-dp_delta), 0.0)
    found = composition.epsilon_at(Laplace(), 1, loss, dp_delta)
    assert exact - 1e-9 <= found <= exact + 2e-3 * loss
    problem = Problem(1, 1, 1, 5, families=2, neighbours="add_remove")  # two coordinates, local
    pair = guarantee(PRIVATIZERS["local_laplace"], problem, 1 / loss, dp_deltas=(dp_delta,))
    assert pair.epsilon_pure == pytest.approx(2 * loss) and pair.epsilon_at_delta[dp_delta] <= 2 * loss


@pytest.mark.parametrize(
    "privatizer, problem, coordinates, shift",
    [
        ("central_laplace", RIVER, 2 * 20 * 3 * 15, 1),
        ("central_laplace", RIVER.replace(homogeneous=True), 2 * 3 * 15, 20),
        ("central_laplace", RIVER.replace(homogeneous=True, neighbours="add_remove"), 3 * 15, 20),
        ("local_laplace", RIVER.replace(families=2), 2 * 20 * 2, 1),
        ("local_laplace", RIVER.replace(neighbours="add_remove"), 20 * 3, 1),
        ("local_sampled", RIVER, 6, 1),
        ("local_sampled", RIVER.replace(homogeneous=True, families=2, neighbours="add_remove"), 2, 1),
    ],
)
@pytest.mark.parametrize("pure", [0.5, 20.0])
def test_laplace_agrees_with_dp_accounting(privatizer, problem, coordinates, shift, pure):
    scale = coordinates * shift / pure
    loss = pure / coordinates
    direct = pld.from_laplace_mechanism(scale, sensitivity=shift, value_discretization_interval=loss / 30)
    expected = direct.self_compose(coordinates).get_epsilon_for_delta(1e-5)
    result = guarantee(PRIVATIZERS[privatizer], problem, scale)
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


@pytest.mark.parametrize("entries", [(0.6, 0.6, 0.6), (1.0, 0.5, 0.375, 0.3125), (0.9, 0.9), (0.1,) * 15])
@pytest.mark.parametrize("loss", [0.3, 2.0])
def test_entries_of_a_column_below_one_are_covered_by_as_many_whole_ones_as_they_sum_to(entries, loss):
    """What accounting takes for Laplace noise on a strategy whose columns are not of zeros and ones."""
    interval = loss / 1_000
    parts = [pld.from_laplace_mechanism(1 / (loss * x), value_discretization_interval=interval) for x in entries]
    composed = functools.reduce(lambda a, b: a.compose(b), parts)
    whole = math.ceil(sum(entries) - 1e-9)
    for epsilon in np.linspace(0, loss * sum(entries), 9)[:-1]:
        assert composed.get_delta_for_epsilon(epsilon) <= Laplace().delta(whole, loss, epsilon, 1) + 1e-5


def test_the_closed_form_takes_over_without_a_jump(monkeypatch):
    n, loss = 2_000, 2e-5
    grid = Laplace().delta(n, loss, 1e-3, 1)
    monkeypatch.setattr(composition, "_MIN_LOSS", 1e-3)
    closed = Laplace().delta(n, loss, 1e-3, 1)
    assert grid * (1 - 1e-6) <= closed <= grid * (1 + 1e-3)


def test_composed_laplace_is_far_below_its_pure_epsilon():
    central = PRIVATIZERS["central_laplace"]
    assert guarantee(central, RIVER, 1800.0).epsilon_at_delta[1e-5] == pytest.approx(0.0702, abs=1e-4)
    pooled = guarantee(central, RIVER.replace(homogeneous=True), 1800.0).epsilon_at_delta[1e-5]
    assert pooled == pytest.approx(0.3553, abs=1e-4)  # about five times as much


@pytest.mark.parametrize("privatizer", by_name(p for p in PRIVATE if p.law.pure))
def test_approximate_never_exceeds_pure(privatizer):
    for scale in (1e-5, 0.1, 10.0, 1e4, 1e9):
        result = guarantee(privatizer, RIVER, scale, dp_deltas=(1e-300, 1e-9, 1e-5, 0.1))
        values = list(result.epsilon_at_delta.values())
        assert values[0] == pytest.approx(result.epsilon_pure, rel=1e-9)
        assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise([result.epsilon_pure, *values]))


# Randomised bits, and shuffled ones


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
    """The exact delta of the sums of an epoch's bits, whatever the others' true bits, lies below the accounted one."""
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
        bound = Bits().delta(n, loss, epsilon, batch)
        alone = Bits().delta(n, loss, epsilon, 1)
        assert exact <= bound <= alone * (1 + 2e-2) + 1e-9


def test_shuffling_amplifies_as_an_epoch_grows():
    """The loss that a bit may have grows with its epoch, and each is used up: a little more breaks the target."""
    losses = []
    for batch in (1, 50, 2_500):
        losses.append(composition.loss_for(Bits(), 80, 1.0, 1e-5, batch))
        assert Bits().delta(80, losses[-1], 1.0, batch) <= 1e-5
        assert Bits().delta(80, 1.01 * losses[-1], 1.0, batch) > 1e-5
    assert losses[0] < 0.05 and losses[2] > 1 and sorted(losses) == losses


def test_shuffled_noise_is_near_that_of_one_central_release():
    """80 bits at (1, 1e-5): the sum of an epoch carries 1.24 times the noise of one Gaussian release, L2^2 = 80."""
    problem = on(RIVER.replace(families=2), "equal:8")
    scale = noise_scale(PRIVATIZERS["shuffle_bernoulli"], problem, 1.0, dp_delta=1e-5)
    flip = 1 / (1 + math.exp(1 / scale))
    std = math.sqrt(2_500 * flip * (1 - flip)) / (1 - 2 * flip)
    central = composition.gaussian_multiplier(1.0, 1e-5) * math.sqrt(80)
    assert std / central == pytest.approx(1.236, abs=0.01)


def test_a_shuffler_is_accounted_for_the_smallest_of_its_epochs():
    shuffle, alone = PRIVATIZERS["shuffle_bernoulli"], PRIVATIZERS["local_bernoulli"]
    target = {"epsilon": 1.0, "dp_delta": 1e-5}
    few = RIVER.replace(families=2, num_episodes=1_000)
    assert noise_scale(shuffle, few, **target) == noise_scale(alone, few, **target)  # epochs of one user: nothing mixes
    assert noise_scale(alone, on(few, "equal:4"), **target) == noise_scale(alone, few, **target)
    halves = noise_scale(shuffle, on(few, "equal:2"), **target)
    assert noise_scale(shuffle, on(few, "equal:1"), **target) < halves < noise_scale(shuffle, few, **target)
    uneven = on(few, "geometric:first=500,growth=2")
    assert uneven.schedule.times(1_000).tolist() == [500, 1_000] and noise_scale(shuffle, uneven, **target) == halves
    assert noise_scale(shuffle, on(few, "geometric:first=1,growth=2"), **target) == noise_scale(shuffle, few, **target)


def test_bits_agree_with_dp_accounting():
    n, epsilon_of_a_bit = 120, 1 / 60
    flip = 1 / (1 + math.exp(epsilon_of_a_bit))
    direct = pld.from_randomized_response(2 * flip, 2, value_discretization_interval=epsilon_of_a_bit / 1000)
    expected = direct.self_compose(n).get_epsilon_for_delta(1e-5)
    found = guarantee(PRIVATIZERS["local_bernoulli"], RIVER, 60.0)
    assert found.epsilon_pure == pytest.approx(2.0)
    assert found.epsilon_at_delta[1e-5] == pytest.approx(expected, rel=5e-3)
    assert found.epsilon_at_delta[1e-5] <= expected * (1 + 1e-6)  # ours is exact, theirs rounds up


# Gaussian noise


@pytest.mark.parametrize(
    "epsilon, dp_delta, expected",
    [(0.5, 1e-5, 7.03), (1, 1e-5, 3.73), (2, 1e-5, 1.99), (4, 1e-5, 1.08), (8, 1e-5, 0.60), (1, 1e-6, 4.22)],
)
def test_known_gaussian_multipliers(epsilon, dp_delta, expected):
    z = composition.gaussian_multiplier(float(epsilon), dp_delta)
    assert z == pytest.approx(expected, abs=0.006)
    assert composition.gaussian_delta(1 / z, epsilon) <= dp_delta
    assert composition.gaussian_delta(1.0001 / z, epsilon) > dp_delta
    assert composition.gaussian_epsilon(1 / z, dp_delta) == pytest.approx(epsilon, rel=1e-7)


@pytest.mark.parametrize("shift", [0.05, 0.5, 5.0])
def test_gaussian_agrees_with_dp_accounting(shift):
    direct = pld.from_gaussian_mechanism(1 / shift, value_discretization_interval=1e-4)
    assert composition.gaussian_epsilon(shift, 1e-5) == pytest.approx(direct.get_epsilon_for_delta(1e-5), rel=1e-3)
    levels = pld.from_gaussian_mechanism(1 / shift, value_discretization_interval=1e-4).self_compose(15)
    composed = composition.gaussian_epsilon(shift * math.sqrt(15), 1e-5)
    assert composed == pytest.approx(levels.get_epsilon_for_delta(1e-5), rel=2e-3)
