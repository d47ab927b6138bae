"""The shortcuts of a block against their formulas, with the module's own convolutions."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nets.layers import spectral_norm
from nets.shortcut import SHORTCUTS, shortcut

CASES = [(kind, in_channels, scale) for kind in SHORTCUTS for in_channels in (3, 4) for scale in (1, 2)]
each_case = pytest.mark.parametrize("kind, in_channels, scale", CASES)


def inputs(in_channels, scale, dtype=torch.float64, n=2, size=4, channels=4):
    torch.manual_seed(1)
    f_i = torch.randn(n, in_channels, size // scale, size // scale, dtype=dtype)
    return f_i, torch.randn(n, channels, size, size, dtype=dtype)


def convolve(layer, x):
    """A same-size convolution as a sum over its taps, in numpy."""
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    k, (h, w) = weight.shape[2], x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    taps = [(weight[:, :, i, j], padded[:, :, i : i + h, j : j + w]) for i in range(k) for j in range(k)]
    return sum(np.einsum("oc,nchw->nohw", *tap) for tap in taps) + bias[:, None, None]


@each_case
def test_formulas(kind, in_channels, scale):
    torch.manual_seed(0)
    module = shortcut(kind, in_channels, 4, scale).double()
    f_i, f_c = inputs(in_channels, scale)
    out = module(f_i, f_c)
    i, c = f_i.numpy().repeat(scale, axis=2).repeat(scale, axis=3), f_c.numpy()
    if kind in ("identity", "egs"):
        assert (in_channels == 4) == isinstance(module.project, torch.nn.Identity)  # a 1x1 only where widths differ
        projected = i if in_channels == 4 else convolve(module.project, i)
        assert in_channels == 4 or module.project.weight.shape == (4, 3, 1, 1)
    if kind in ("gated", "egs"):
        both = np.concatenate([c, i], axis=1)
        f_g = 1 / (1 + np.exp(-convolve(module.gate, both)))
        assert module.gate.weight.shape == (4, 4 + in_channels, 3, 3)
    if kind == "none":
        expected = c
    elif kind == "identity":
        expected = projected + c
    elif kind == "gated":
        expected = convolve(module.output, f_g * c + (1 - f_g) * convolve(module.refine, both))
    else:
        expected = f_g * projected + (1 - f_g) * c
    torch.testing.assert_close(out.detach(), torch.from_numpy(expected))
    projects = in_channels != 4 and kind in ("identity", "egs")
    assert len(list(module.parameters())) == {"none": 0, "identity": 0, "gated": 6, "egs": 2}[kind] + 2 * projects


@pytest.mark.parametrize("scale", (1, 2))
def test_where_the_gate_leads(scale):
    """A gate that is wide open leaves the block's feature (gated: convolved) or the input (egs); shut, the other."""
    f_i, f_c = inputs(4, scale)
    up = F.interpolate(f_i, scale_factor=scale)
    gated, egs = shortcut("gated", 4, 4, scale).double(), shortcut("egs", 4, 4, scale).double()
    for bias, of_gated, of_egs in ((50.0, f_c, up), (-50.0, gated.refine(torch.cat([f_c, up], 1)), f_c)):
        for module in (gated, egs):
            module.gate.weight.data.zero_()
            module.gate.bias.data.fill_(bias)
        torch.testing.assert_close(gated(f_i, f_c), gated.output(of_gated))
        torch.testing.assert_close(egs(f_i, f_c), of_egs)


@pytest.mark.parametrize("scale", (1, 2))
@pytest.mark.parametrize("kind", SHORTCUTS)
def test_twice_differentiable(kind, scale):
    torch.manual_seed(0)
    module = shortcut(kind, 1, 2, scale).double()
    f_i, f_c = inputs(1, scale, n=1, size=2, channels=2)
    names, values = [n for n, _ in module.named_parameters()], [p.detach().clone() for p in module.parameters()]

    def call(f_i, f_c, *parameters):
        out = torch.func.functional_call(module, dict(zip(names, parameters)), (f_i, f_c))
        return out.square() + f_i.sum()  # "none" does not read its input

    given = [t.requires_grad_() for t in (f_i, f_c, *values)]
    assert torch.autograd.gradcheck(call, given) and torch.autograd.gradgradcheck(call, given)


@each_case
def test_copies_formats_autocast_and_spectral_norm(kind, in_channels, scale):
    torch.manual_seed(0)
    module = spectral_norm(shortcut(kind, in_channels, 4, scale)).eval()
    f_i, f_c = inputs(in_channels, scale, torch.float32)
    y = module(f_i, f_c)
    other = spectral_norm(shortcut(kind, in_channels, 4, scale)).eval()
    other.load_state_dict(module.state_dict())
    assert torch.equal(copy.deepcopy(module)(f_i, f_c), y) and torch.equal(other(f_i, f_c), y)
    module.to(memory_format=torch.channels_last)
    z = module(*(t.to(memory_format=torch.channels_last) for t in (f_i, f_c)))
    assert z.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(z, y)
    f_c.requires_grad_()
    for given in (f_i, f_i.bfloat16()):  # a block's input and feature may differ in dtype under autocast
        with torch.autocast("cpu", torch.bfloat16):
            out = module(given, f_c)
        torch.testing.assert_close(out.float(), y, rtol=0.05, atol=0.05)
        (slope,) = torch.autograd.grad(out.float().square().sum(), f_c, create_graph=True)
        slope.square().sum().backward()
        assert f_c.grad.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_refusal():
    with pytest.raises(ValueError, match="unknown shortcut 'gate', allowed: none, identity, gated, egs"):
        shortcut("gate", 4, 4)
