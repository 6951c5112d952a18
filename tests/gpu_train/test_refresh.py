"""The cost rule: close to the best that hindsight finds, whatever the shape of the curve, within the depth allowed."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from gpu_train.refresh import STANDALONE, Spent, deepest_base

Curve = tuple[float, float, float]
"""Standalone ratio, ratio at distance 1, and what each doubling of the distance adds."""

CURVES: dict[str, Curve] = {
    "bf16 weights": (0.662, 0.033, 0.006),
    "bf16 exp_avg": (0.63, 0.587, 0.02),
    "bf16 exp_avg_sq": (0.66, 0.475, 0.045),
    "fp32 weights": (0.832, 0.46, 0.06),
    "fp32 exp_avg": (0.82, 0.80, 0.012),
    "fp32 exp_avg_sq": (0.84, 0.66, 0.04),
    "frozen": (0.66, 0.0, 0.0),
}
STEPS = 60


def ratio(curve: Curve, distance: int) -> float:
    alone, first, growth = curve
    return min(alone, first + growth * math.log2(distance))


def run(curve: Curve, most: int) -> list[Spent]:
    """What a run of so many checkpoints takes under the rule."""
    history: list[Spent] = []
    for at in range(STEPS):
        depth = deepest_base(history, most - 1)
        assert STANDALONE <= depth <= most - 1
        base = next((i for i in range(at - 1, -1, -1) if history[i].depth <= depth), None)
        if base is None or ratio(curve, at - base) >= curve[0]:
            history.append(Spent(curve[0], 0))
        else:
            history.append(Spent(ratio(curve, at - base), history[base].depth + 1))
    return history


def best(curve: Curve, most: int) -> float:
    """The least average cost by hindsight, each base being the newest of its depth."""
    below = [[0.0] * (STEPS + 1) for _ in range(most + 1)]
    below[most] = [0.0] + [math.inf] * STEPS
    for depth in range(most - 1, -1, -1):
        for n in range(1, STEPS + 1):
            below[depth][n] = min(
                below[depth][at - 1] + ratio(curve, at) + below[depth + 1][n - at] for at in range(1, n + 1)
            )
    total = [0.0] * (STEPS + 1)
    for n in range(1, STEPS + 1):
        total[n] = min(total[at - 1] + curve[0] + below[0][n - at] for at in range(1, n + 1))
    return total[STEPS] / STEPS


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("name", list(CURVES))
def test_the_rule_costs_little_more_than_hindsight(name: str, most: int) -> None:
    history = run(CURVES[name], most)
    assert max(spent.depth for spent in history) <= most
    average = sum(spent.ratio for spent in history) / STEPS
    assert average <= best(CURVES[name], most) * 1.03


def test_deeper_is_never_dearer_over_a_run() -> None:
    for curve in CURVES.values():
        averages = [sum(spent.ratio for spent in run(curve, most)) / STEPS for most in (1, 2, 3, 4)]
        assert all(deeper <= before * 1.005 for before, deeper in pairwise(averages))


def test_a_first_checkpoint_may_use_any_base() -> None:
    assert deepest_base([], 3) == 3


def test_no_depth_at_all_means_standalone() -> None:
    assert deepest_base([Spent(0.66, 0)], STANDALONE) == STANDALONE


def test_a_run_that_went_on_from_a_model_goes_on_from_there() -> None:
    assert deepest_base([Spent(0.03, 1)], 3) == 1


def test_a_delta_that_grew_past_the_average_ends_the_use_of_its_base() -> None:
    history = [Spent(0.832, 0), Spent(0.46, 1), Spent(0.519, 1), Spent(0.554, 1), Spent(0.579, 1)]
    assert deepest_base(history, 0) == STANDALONE
    assert deepest_base(history[:-2], 0) == 0
