"""Up- and downsampling layers: sizes, constants, and their formulas."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nets.layers import spectral_norm
from nets.resize import DOWNSAMPLES, UPSAMPLES, downsample, upsample

KINDS = [(upsample, kind, 2.0) for kind in UPSAMPLES] + [(downsample, kind, 0.5) for kind in DOWNSAMPLES]
each_kind = pytest.mark.parametrize("make, kind, factor", KINDS, ids=[f"{make.__name__}-{kind}" for make, kind, _ in KINDS])


def convolution(module):
    """The one module with a weight."""
    (layer,) = [m for m in module.modules() if getattr(m, "weight", None) is not None]
    return layer


@each_kind
def test_sizes_and_bias(make, kind, factor):
    for bias in (True, False):
        layer = make(kind, 3, 5, bias)
        for h, w in ((4, 4), (2, 6), (16, 8)):
            assert layer(torch.randn(2, 3, h, w)).shape == (2, 5, int(h * factor), int(w * factor))
        assert (convolution(layer).bias is not None) == bias
        assert len(list(layer.parameters())) == 1 + bias and len(layer.state_dict()) == 1 + bias


@each_kind
def test_a_constant_image_stays_constant_away_from_borders(make, kind, factor):
    """For any weights; but through ``transposed`` and ``pixel_shuffle`` each phase of the stride has a value of its own."""
    torch.manual_seed(0)
    layer, x = make(kind, 2, 3, True), torch.ones(1, 2, 16, 16) * torch.tensor([0.5, -2.0])[:, None, None]
    y = layer(x).detach()[:, :, 2:-2, 2:-2]
    assert y.shape[2] == 16 * factor - 4
    if kind in ("transposed", "pixel_shuffle"):
        for i in range(2):
            for j in range(2):
                part = y[:, :, i::2, j::2]
                torch.testing.assert_close(part, part[:, :, :1, :1].expand_as(part))
        assert (y[:, :, 0::2] - y[:, :, 1::2]).abs().max() > 1e-3  # the checkerboard
    else:
        conv = convolution(layer)
        value = (conv.weight.sum((2, 3)) @ torch.tensor([0.5, -2.0]) + conv.bias).detach()
        torch.testing.assert_close(y, value[None, :, None, None].expand_as(y))


def test_transposed_is_conv_transpose2d():
    torch.manual_seed(0)
    layer, x = upsample("transposed", 3, 5, True), torch.randn(2, 3, 4, 6)
    torch.testing.assert_close(layer(x), F.conv_transpose2d(x, layer.weight, layer.bias, stride=2, padding=1))
    assert layer.weight.shape == (3, 5, 4, 4)


def test_strided_is_conv2d():
    torch.manual_seed(0)
    layer, x = downsample("strided", 3, 5, True), torch.randn(2, 3, 4, 6)
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias, stride=2, padding=1))
    assert layer.weight.shape == (5, 3, 4, 4)


def test_resize_repeats_pixels_then_convolves():
    torch.manual_seed(0)
    layer, x = upsample("resize", 3, 5, True), torch.randn(2, 3, 4, 6)
    conv = convolution(layer)
    doubled = torch.from_numpy(x.numpy().repeat(2, axis=2).repeat(2, axis=3))
    torch.testing.assert_close(layer(x), F.conv2d(doubled, conv.weight, conv.bias, padding=1))


def test_pixel_shuffle_layout():
    """Output (c, 2 y + i, 2 x + j) is channel 4 c + 2 i + j of the convolution at (y, x)."""
    torch.manual_seed(0)
    layer, x = upsample("pixel_shuffle", 3, 5, True), torch.randn(2, 3, 4, 6)
    conv = convolution(layer)
    inner = F.conv2d(x, conv.weight, conv.bias, padding=1).detach()
    assert inner.shape == (2, 20, 4, 6)
    expected = np.zeros((2, 5, 8, 12), np.float32)
    for i in range(2):
        for j in range(2):
            expected[:, :, i::2, j::2] = inner[:, 2 * i + j :: 4].numpy()
    torch.testing.assert_close(layer(x).detach(), torch.from_numpy(expected))


def test_avg_pool_and_fir_follow_the_convolution():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 6)
    row = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
    for kind, kernel, padding in (("avg_pool", torch.full((2, 2), 0.25), 0), ("fir", torch.outer(row, row), 1)):
        layer = downsample(kind, 3, 5, True)
        conv = convolution(layer)
        inner = F.conv2d(x, conv.weight, conv.bias, padding=1)
        expected = F.conv2d(inner, kernel.expand(5, 1, *kernel.shape), stride=2, padding=padding, groups=5)
        torch.testing.assert_close(layer(x), expected)


def test_fir_interpolates_before_the_convolution():
    torch.manual_seed(0)
    layer, x = upsample("fir", 3, 5, True), torch.randn(2, 3, 8, 6)
    row = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 4
    between = F.conv_transpose2d(x, torch.outer(row, row).expand(3, 1, 4, 4), stride=2, padding=1, groups=3)
    torch.testing.assert_close(layer(x), F.conv2d(between, convolution(layer).weight, convolution(layer).bias, padding=1))


@each_kind
def test_twice_differentiable(make, kind, factor):
    torch.manual_seed(0)
    layer = make(kind, 1, 1, True).double()
    names, values = zip(*[(n, p.detach().clone()) for n, p in layer.named_parameters()])

    def call(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters)), (x,)).square()

    inputs = [t.requires_grad_() for t in (torch.randn(2, 1, 2, 2, dtype=torch.float64), *values)]
    assert torch.autograd.gradcheck(call, inputs) and torch.autograd.gradgradcheck(call, inputs)


@each_kind
def test_copies_formats_autocast_and_spectral_norm(make, kind, factor):
    torch.manual_seed(0)
    layer = make(kind, 3, 5, True)
    spectral_norm(layer).eval()
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    y = layer(x)
    other = spectral_norm(make(kind, 3, 5, True)).eval()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(copy.deepcopy(layer)(x), y) and torch.equal(other(x), y)
    z = layer.to(memory_format=torch.channels_last)(x.detach().to(memory_format=torch.channels_last))
    assert z.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(z, y)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), y, rtol=0.03, atol=0.03)
    (slope,) = torch.autograd.grad(out.float().square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert all(p.grad.isfinite().all() for n, p in layer.named_parameters() if "weight" in n)


def test_refusals():
    with pytest.raises(ValueError, match="unknown upsample 'bilinear', allowed: transposed, resize, pixel_shuffle, fir"):
        upsample("bilinear", 3, 3, True)
    with pytest.raises(ValueError, match="unknown downsample 'transposed', allowed: strided, avg_pool, fir"):
        downsample("transposed", 3, 3, True)
