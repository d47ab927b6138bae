"""The adaptive strength against a computation by hand."""

import pytest
import torch

from data.augment import AdaptiveStrength, build_adaptive_strength


def test_by_hand():
    ada = AdaptiveStrength(target=0.6, interval=4, adjust_kimg=500.0)
    step = 4 * 64 / 500_000
    path = []
    for signs in ((1.0, 0.5, 0.5, 0.5), (0.5, 0.5, 0.8, 0.9), (0.9, 0.6, 0.3, 0.5), (0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0)):
        for sign in signs:
            path.append(float(ada.strength))
            ada.update(sign, 64)
    # means .625, .675, .575, 0, 1: up, up, down, down, up; it moves only every fourth step
    expected = [0.0] * 4 + [step] * 4 + [2 * step] * 4 + [step] * 4 + [0.0] * 4
    assert path == pytest.approx(expected, abs=1e-9)
    assert float(ada.strength) == pytest.approx(step)


def test_never_negative_no_upper_limit_and_still_at_the_target():
    ada = AdaptiveStrength(start=0.99, interval=1, adjust_kimg=1.0)
    ada.update(1.0, 100)
    assert float(ada.strength) == pytest.approx(1.09)
    ada.update(torch.tensor(0.6), 100)
    assert float(ada.strength) == pytest.approx(1.09)
    ada.update(-1.0, 5000)
    assert float(ada.strength) == 0.0


def test_a_step_weighs_by_its_images():
    ada = AdaptiveStrength(interval=2, adjust_kimg=1.0)
    ada.update(0.0, 10)
    ada.update(1.0, 90)
    assert float(ada.strength) == pytest.approx(0.1)  # mean sign .9


def test_all_state_is_saved():
    ada, resumed = AdaptiveStrength(0.3, interval=3, adjust_kimg=1.0), AdaptiveStrength(interval=3, adjust_kimg=1.0)
    for sign in (1.0, 0.9):
        ada.update(sign, 7)
    resumed.load_state_dict(ada.state_dict())
    for controller in (ada, resumed):
        controller.update(0.1, 7)
    assert torch.equal(resumed.strength, ada.strength)
    assert float(ada.strength) == pytest.approx(0.3 + 21 / 1000)


def test_nan_moves_nothing():
    ada = AdaptiveStrength(0.3, interval=2, adjust_kimg=1.0)
    for sign in (1.0, float("nan")):
        ada.update(sign, 8)
    assert float(ada.strength) == pytest.approx(0.3)
    for sign in (1.0, 1.0):  # and it is forgotten
        ada.update(sign, 8)
    assert float(ada.strength) == pytest.approx(0.316)


def test_build():
    assert build_adaptive_strength({"name": "none"}) is None
    assert build_adaptive_strength({"name": "diffaugment"}) is None
    assert build_adaptive_strength({"name": "ada"}) is None
    options = {"name": "ada", "adaptive": True, "target": 0.5, "adjust_kimg": 100.0, "interval": 2}
    ada = build_adaptive_strength(options, start=0.2)
    assert (float(ada.strength), ada.target, ada.interval, ada.adjust_kimg) == (pytest.approx(0.2), 0.5, 2, 100.0)
    with pytest.raises(ValueError, match="strength=-0.1: must be at least 0"):
        AdaptiveStrength(-0.1)
