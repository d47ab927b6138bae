"""Feature matching, the auxiliary classifier's cross-entropy, weight clipping."""

import math

import pytest
import torch
from torch import nn

from losses import auxiliary_cross_entropy, clip_weights_, feature_matching


def test_feature_matching_compares_means_over_the_batch():
    real = torch.tensor([[1.0, 2.0], [3.0, -2.0]], dtype=torch.float64)
    fake = torch.tensor([[0.0, 4.0], [1.0, 0.0], [-1.0, 5.0]], dtype=torch.float64, requires_grad=True)
    # means (2, 0) and (0, 3)
    for kind, value, gradient in (("squared", 13.0, [-4 / 3, 6 / 3]), ("l1", 5.0, [-1 / 3, 1 / 3])):
        distance = feature_matching(real, fake, kind)
        assert distance.shape == () and distance.item() == pytest.approx(value, rel=1e-12)
        (found,) = torch.autograd.grad(distance, fake)
        torch.testing.assert_close(found, torch.tensor([gradient] * 3, dtype=torch.float64))
    assert feature_matching(real, fake).item() == pytest.approx(13.0)


def test_feature_maps_are_flattened_per_sample():
    real, fake = torch.randn(2, 5, 3, 4, 2, dtype=torch.float64).unbind(0)
    difference = [[[sum(real[i, c, y, x] - fake[i, c, y, x] for i in range(5)) / 5 for x in range(2)] for y in range(4)]
                  for c in range(3)]  # fmt: skip
    difference = torch.tensor(difference).flatten().tolist()
    assert feature_matching(real, fake).item() == pytest.approx(sum(d * d for d in difference), rel=1e-10)
    assert feature_matching(real, fake, "l1").item() == pytest.approx(sum(map(abs, difference)), rel=1e-10)
    assert feature_matching(real, real.flip(0)).item() == pytest.approx(0, abs=1e-20)


def test_feature_matching_of_half_precision_is_computed_in_fp32():
    real, fake = torch.full((4096, 2), 30.0, dtype=torch.float16), torch.full((4096, 2), 30.25, dtype=torch.float16)
    distance = feature_matching(real, fake)
    assert distance.dtype == torch.float32 and distance.item() == pytest.approx(0.125)


@pytest.mark.parametrize("real, fake", [((4,), (4,)), ((4, 3), (4, 2)), ((4, 3), (4, 3, 1)), ((0, 3), (4, 3)), ((4, 3), (0, 3))])
def test_feature_matching_refuses_wrong_shapes(real, fake):
    with pytest.raises(ValueError, match=r"features must be \(n, ...\)"):
        feature_matching(torch.zeros(real), torch.zeros(fake))


def test_feature_matching_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="kind=l2 of feature matching is unknown, allowed: squared, l1"):
        feature_matching(torch.zeros(2, 3), torch.zeros(2, 3), "l2")


def test_auxiliary_cross_entropy():
    logits = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    for dtype in (torch.int64, torch.int32):
        labels = torch.tensor([1, 2], dtype=dtype)
        values = auxiliary_cross_entropy(logits, labels)
        rows = zip(logits.tolist(), labels.tolist(), strict=True)
        by_hand = [-math.log(math.exp(row[k]) / sum(map(math.exp, row))) for row, k in rows]
        torch.testing.assert_close(values, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().softmax(1) - torch.eye(3, dtype=torch.float64)[[1, 2]])


def test_auxiliary_cross_entropy_is_fp32_and_finite_at_extreme_logits():
    logits = torch.tensor([[30.0, -40.0], [-1e4, 1e4]], dtype=torch.float16, requires_grad=True)
    values = auxiliary_cross_entropy(logits, torch.tensor([1, 0]))
    values.sum().backward()
    assert values.dtype == torch.float32 and values.tolist() == [70.0, 20000.0] and logits.grad.isfinite().all()
    assert auxiliary_cross_entropy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    "shape, labels, message",
    [
        ((2,), [0, 1], r"class logits must be \(n, classes\), found \(2,\)"),
        ((2, 3, 1), [0, 1], r"class logits must be \(n, classes\), found \(2, 3, 1\)"),
        ((2, 3), [0, 1, 2], r"labels must be \(2,\) int64, found \(3,\) torch.int64"),
        ((2, 3), [[0], [1]], r"labels must be \(2,\) int64, found \(2, 1\)"),
        ((2, 3), [0.0, 1.0], r"labels must be \(2,\) int64, found \(2,\) torch.float32"),
        ((2, 3), [0, 3], r"label 3 is outside 0..2"),
        ((2, 3), [-1, 1], r"label -1 is outside 0..2"),
        ((2, 3), [-100, 1], r"label -100 is outside 0..2"),
        ((2, 3), None, r"needs labels \(n,\) int64 in 0..2, found none"),
    ],
)
def test_auxiliary_cross_entropy_refuses_wrong_input(shape, labels, message):
    with pytest.raises(ValueError, match=message):
        auxiliary_cross_entropy(torch.zeros(shape, requires_grad=True), None if labels is None else torch.tensor(labels))


def test_auxiliary_cross_entropy_reads_no_values_back_in_training():
    logits = torch.zeros(2, 3, device="meta", requires_grad=True)  # a device whose values cannot be read
    assert auxiliary_cross_entropy(logits, torch.zeros(2, dtype=torch.int64, device="meta")).shape == (2,)


def test_clip_weights_brings_every_parameter_into_the_bound():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 1))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    places = [parameter.data_ptr() for parameter in module.parameters()]
    assert clip_weights_(module, 0.01) is None
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name].clamp(-0.01, 0.01)) and parameter.requires_grad
    assert module[1].weight.tolist() == [pytest.approx(0.01)] * 4 and torch.equal(module[1].running_var, before["1.running_var"])
    assert places == [parameter.data_ptr() for parameter in module.parameters()]
    after = {key: value.clone() for key, value in module.state_dict().items()}
    clip_weights_(module, 5.0)
    assert all(torch.equal(value, after[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("bound", [0.0, -0.01, float("nan"), float("inf")])
def test_clip_weights_refuses_a_bound_that_is_none(bound):
    with pytest.raises(ValueError, match="must be positive and finite, found"):
        clip_weights_(nn.Linear(2, 2), bound)
