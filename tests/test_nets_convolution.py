"""The convolution with cheap double backward against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import nets.convolution
from nets.convolution import conv2d, leaky_relu_

GEOMETRIES = [  # c_in, c_out, kernel, groups, stride, padding, size
    (4, 6, 3, 2, 1, 1, 4),
    (4, 4, 4, 4, 2, 1, 6),
    (3, 2, 1, 1, 1, 0, 3),
    (2, 4, 3, 2, 2, 1, 6),  # the last row and column are read by no output
]


def operands(c_in, c_out, kernel, groups, size, dtype=torch.float64, n=2):
    generator = torch.Generator().manual_seed(0)
    shapes = (n, c_in, size, size), (c_out, c_in // groups, kernel, kernel), (c_out,)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("c_in, c_out, kernel, groups, stride, padding, size", GEOMETRIES)
def test_first_and_second_derivatives(c_in, c_out, kernel, groups, stride, padding, size):
    inputs = operands(c_in, c_out, kernel, groups, size)
    options = dict(stride=stride, padding=padding, groups=groups)
    for function in (lambda *a: conv2d(*a, **options), lambda *a: leaky_relu_(conv2d(*a, **options))):
        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 4e-3)])
def test_a_gradient_penalty_equals_the_built_in_ones(dtype, tolerance, channels_last):
    def penalty(conv, act, dtype):
        x, w, b = operands(8, 8, 3, 4, 6, n=3)
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        leaves = [x, w, b]
        x, w, b = (t.to(dtype) for t in leaves)
        x, w = x.to(memory_format=memory_format), w.to(memory_format=memory_format)
        y = act(conv(act(conv(x, w, b, padding=1, groups=4)), w, b, padding=1, groups=4))
        (grad,) = torch.autograd.grad(y.float().square().sum(), leaves[0], create_graph=True)
        loss = grad.square().sum() * 1e-4 + y.double().sum()
        return [grad, *torch.autograd.grad(loss, leaves)]

    own = penalty(conv2d, leaky_relu_, dtype)
    built_in = penalty(F.conv2d, lambda x: F.leaky_relu(x, 0.2), torch.float64)
    for a, b in zip(own, built_in, strict=True):
        assert (a - b).norm() <= tolerance * b.norm()


def test_third_derivatives():
    x, w, _ = operands(2, 2, 3, 2, 4)
    results = []
    for conv in (conv2d, F.conv2d):
        first = torch.autograd.grad(conv(x, w, padding=1, groups=2).pow(4).sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), w, create_graph=True)[0]
        results.append(torch.autograd.grad(second.square().sum(), [x, w]))
    torch.testing.assert_close(results[0], results[1])


def test_channels_last_is_kept():
    x, w, b = operands(8, 8, 3, 4, 6, torch.float32)
    y = leaky_relu_(conv2d(x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last), b, groups=4))
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert y.is_contiguous(memory_format=torch.channels_last) and grad.shape == x.shape


def test_only_wanted_gradients_are_computed(monkeypatch):
    calls = []
    real = nets.convolution._WeightGradient.apply
    monkeypatch.setattr(nets.convolution._WeightGradient, "apply", lambda *a: calls.append(1) or real(*a))
    x, w, b = operands(2, 2, 3, 1, 4)
    (grad,) = torch.autograd.grad(conv2d(x, w, b).square().sum(), x, create_graph=True)
    assert not calls
    (grad_w,) = torch.autograd.grad(grad.sum(), w)
    assert calls and grad_w.abs().sum() > 0


def test_without_gradients_and_under_autocast():
    x, w, b = operands(2, 2, 3, 1, 4, torch.float32)
    with torch.no_grad():
        expected = F.leaky_relu(F.conv2d(x, w, b), 0.2)
        assert torch.equal(leaky_relu_(conv2d(x, w, b)), expected)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv2d(x, w, b)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == w.grad.dtype == b.grad.dtype == torch.float32
