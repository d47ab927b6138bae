"""The shared layers against formulas written out, and the initialisers."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from nets.blocks import ClassEmbedding, Convolution
from nets.initialise import INITS, dcgan_, fan_in, initialise
from nets.layers import (
    NORMS,
    Conv2d,
    MinibatchStddev,
    SelfAttention,
    StochasticDepth,
    advance_spectral_norm,
    linear_survival,
    needs_bias,
    norm,
    spectral_norm,
)

TINY = {
    "conv": (lambda: Conv2d(2, 2, 3, 2, 1), (2, 2, 4, 3)),
    "attention": (lambda: SelfAttention(2), (2, 2, 2, 2)),
    "stddev": (lambda: MinibatchStddev(2), (4, 2, 2, 1)),
    "depth": (lambda: StochasticDepth(0.5).eval(), (2, 1, 2, 2)),
    "spectral": (lambda: spectral_norm(Conv2d(2, 2, 2)).eval(), (1, 2, 3, 2)),
    **{f"{kind} norm": (lambda kind=kind: norm(kind, 4), (2, 4, 2, 1)) for kind in NORMS},
}


def randomise(module):
    """Every parameter to N(0, 1/4), those that start at 0 or 1 included."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)
    return module


@pytest.mark.parametrize("name", TINY)
def test_twice_differentiable(name):
    torch.manual_seed(0)
    make, shape = TINY[name]
    module = randomise(make().double())
    names, values = [n for n, _ in module.named_parameters()], [p.detach().clone() for p in module.parameters()]

    def call(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters)), (x,))

    inputs = [t.requires_grad_() for t in (torch.randn(shape, dtype=torch.float64), *values)]
    assert torch.autograd.gradcheck(call, inputs) and torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("name", TINY)
def test_copies_states_formats_and_autocast(name):
    torch.manual_seed(0)
    make, _ = TINY[name]
    module = randomise(make()).eval()
    channels = 4 if "norm" in name else 2
    x = torch.randn(4, channels, 6, 5)
    y = module(x)
    clone, other = copy.deepcopy(module), make().eval()
    other.load_state_dict(module.state_dict())
    assert torch.equal(clone(x), y) and torch.equal(other(x), y)
    randomise(clone)
    assert torch.equal(module(x), y)  # a copy shares nothing
    module.to(memory_format=torch.channels_last)
    z = module(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(z, y, rtol=1e-5, atol=1e-5)
    if name != "instance norm":  # PyTorch's own returns the default format
        assert z.is_contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    for given in (x, x.bfloat16()):
        with torch.autocast("cpu", torch.bfloat16):
            out = module(given)
        assert out.dtype in (torch.bfloat16, torch.float32)
        torch.testing.assert_close(out.float(), y, rtol=0.05, atol=0.05)
        (slope,) = torch.autograd.grad(out.float().square().sum(), x, create_graph=True)
        slope.square().sum().backward()  # a gradient penalty
        assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


GEOMETRIES = [
    dict(kernel_size=3, padding=1),
    dict(kernel_size=4, stride=2, padding=1),
    dict(kernel_size=3, padding=1, groups=2, bias=False),
    dict(kernel_size=1, stride=(2, 2)),
    dict(kernel_size=(1, 3), padding=(0, 1)),
    dict(kernel_size=3, stride=(1, 2)),
    dict(kernel_size=3, dilation=2, padding=2),
    dict(kernel_size=3, padding="same"),
    dict(kernel_size=3, padding=1, padding_mode="reflect"),
]


@pytest.mark.parametrize("options", GEOMETRIES, ids=str)
def test_conv2d_is_torch_conv2d(options):
    torch.manual_seed(0)
    ours, theirs = Conv2d(4, 6, **options).double(), nn.Conv2d(4, 6, **options).double()
    theirs.load_state_dict(ours.state_dict())
    results = []
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64, requires_grad=True)
    for layer in (ours, theirs):
        y = layer(x)
        first = torch.autograd.grad(y.pow(3).sum(), [x, *layer.parameters()], create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), [x, *layer.parameters()])
        results.append([y, *first, *second])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))


def test_conv2d_takes_the_cheap_way_when_it_can():
    x = torch.randn(1, 4, 6, 6)
    assert "_Convolution" in Conv2d(4, 4, 4, 2, 1)(x).grad_fn.name()
    assert "_Convolution" not in Conv2d(4, 4, 3, dilation=2)(x).grad_fn.name()


@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind):
    torch.manual_seed(0)
    channels = 24
    layer, x = randomise(norm(kind, channels)), torch.randn(3, channels, 4, 5) * 2 + 1
    groups = {"batch": None, "instance": 24, "layer": 1, "group": 6, "none": None}[kind]
    a = x.double().numpy()
    if kind == "batch":
        expected = (a - a.mean((0, 2, 3), keepdims=True)) / np.sqrt(a.var((0, 2, 3), keepdims=True) + 1e-5)
    elif groups:
        a = a.reshape(3, groups, -1)
        expected = ((a - a.mean(2, keepdims=True)) / np.sqrt(a.var(2, keepdims=True) + 1e-5)).reshape(x.shape)
    if kind == "none":
        expected = x.double()
    else:
        scale, shift = (p.detach().double()[:, None, None] for p in (layer.weight, layer.bias))
        expected = torch.from_numpy(expected) * scale + shift
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-4, atol=1e-4)
    shifted = layer(x + torch.randn(channels, 1, 1))  # what a bias before it would do
    assert torch.allclose(shifted, layer(x), atol=1e-4) != needs_bias(kind)


def test_norm_groups_and_refusal():
    assert [norm("group", c).num_groups for c in (512, 64, 24, 16, 6, 3)] == [32, 16, 6, 4, 1, 1]
    fresh = norm("instance", 8)
    assert torch.equal(fresh.weight, torch.ones(8)) and torch.equal(fresh.bias, torch.zeros(8))
    with pytest.raises(ValueError, match="unknown norm 'bach', allowed: batch, instance, layer, group, none"):
        norm("bach", 8)


def test_self_attention():
    torch.manual_seed(0)
    layer, x = SelfAttention(16).double(), torch.randn(2, 16, 3, 5, dtype=torch.float64)
    assert layer.query.weight.shape == (2, 16, 1, 1)
    assert torch.equal(layer(x), x)  # gain 0
    layer.gain.data.fill_(0.7)
    wq, wk, wv, wo = (getattr(layer, n).weight.detach()[..., 0, 0].numpy() for n in ("query", "key", "value", "output"))
    a = x.flatten(2).numpy()  # (n, c, positions)
    scores = np.einsum("oc,ncj,od,ndi->nji", wq, a, wk, a)  # position j asks position i
    weights = np.exp(scores) / np.exp(scores).sum(2, keepdims=True)
    expected = a + 0.7 * np.einsum("co,od,ndi,nji->ncj", wo, wv, a, weights)
    torch.testing.assert_close(layer(x), torch.from_numpy(expected).view_as(x))
    assert SelfAttention(3).query.out_channels == 1


@pytest.mark.parametrize("n, group_size, size", [(6, 4, 3), (8, 4, 4), (5, 4, 1), (2, 4, 2), (4, 1, 1), (12, 5, 4)])
def test_minibatch_stddev(n, group_size, size):
    torch.manual_seed(0)
    x = torch.randn(n, 3, 2, 5)
    y = MinibatchStddev(group_size)(x)
    expected, a, groups = np.zeros(n), x.double().numpy(), n // size
    for g in range(groups):
        members = list(range(g, n, groups))
        assert len(members) == size
        expected[members] = np.sqrt(a[members].var(axis=0) + 1e-8).mean()
    assert y.shape == (n, 4, 2, 5) and torch.equal(y[:, :3], x)
    np.testing.assert_allclose(y[:, 3].double().numpy(), np.broadcast_to(expected[:, None, None], (n, 2, 5)), rtol=1e-5)


def test_minibatch_stddev_of_equal_samples_has_finite_derivatives():
    assert MinibatchStddev.batch_coupled
    x = torch.ones(4, 2, 2, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(MinibatchStddev()(x)[:, 2].sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert slope.isfinite().all() and x.grad.isfinite().all()
    with pytest.raises(ValueError, match="at least 1, found 0"):
        MinibatchStddev(0)


def test_stochastic_depth():
    torch.manual_seed(0)
    layer, x = StochasticDepth(0.75), torch.randn(4000, 2, 1, 2)
    y = layer(x)
    alive = (y != 0).flatten(1).any(1)
    torch.testing.assert_close(y[alive], x[alive] / 0.75)  # whole samples, rescaled
    assert (y[~alive] == 0).all()
    assert abs(alive.float().mean().item() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 4000)
    ones = layer(torch.ones(4000, 1)).mean().item()
    assert abs(ones - 1) < 4 * math.sqrt(0.25 / 0.75 / 4000)  # the mean is kept
    torch.manual_seed(5)
    first = layer(x)
    torch.manual_seed(5)
    assert torch.equal(layer(x), first)  # PyTorch's default generator
    assert layer.eval()(x) is x and StochasticDepth(1.0)(x) is x
    for bad in (0.0, -0.5, 1.5):
        with pytest.raises(ValueError, match=r"in \(0, 1\]"):
            StochasticDepth(bad)


def test_linear_survival():
    assert linear_survival(0.8, 3) == [1.0, pytest.approx(0.9), 0.8]
    assert linear_survival(0.5, 5) == [1.0, 0.875, 0.75, 0.625, 0.5]
    assert linear_survival(1.0, 4) == [1.0] * 4
    assert linear_survival(0.7, 1) == [0.7] and linear_survival(0.7, 0) == []
    assert linear_survival(0.3, 7)[-1] == 0.3


LAYERS = {
    "conv": (lambda: Conv2d(3, 5, 3), lambda w: w.reshape(5, -1), (2, 3, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 5, 4), lambda w: w.transpose(1, 0, 2, 3).reshape(5, -1), (2, 3, 4, 4)),
    "linear": (lambda: nn.Linear(6, 4), lambda w: w, (2, 6)),
    "own": (lambda: Convolution(4, 4, 3, 2), lambda w: w.reshape(4, -1), (2, 4, 4, 4)),
    "classes": (lambda: ClassEmbedding(7, 3, 0.3), lambda w: w, None),
    "embedding": (lambda: nn.Embedding(7, 3), lambda w: w, None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_spectral_norm(name):
    torch.manual_seed(0)
    make, matrix, shape = LAYERS[name]
    module = nn.Sequential(make())
    original = module[0].weight.detach().clone() * 5
    module[0].weight.data.mul_(5)
    assert spectral_norm(module) is module
    for _ in range(60):
        module[0].weight  # noqa: B018  reading moves nothing
        advance_spectral_norm(module)
    module.eval()
    weight = module[0].weight
    largest = np.linalg.svd(matrix(original.double().numpy()), compute_uv=False)[0]
    assert np.linalg.svd(matrix(weight.detach().double().numpy()), compute_uv=False)[0] == pytest.approx(1, abs=1e-3)
    torch.testing.assert_close(weight, original / largest, rtol=1e-3, atol=1e-5)
    vectors = [b.clone() for b in module.buffers()]
    assert torch.equal(module.train()[0].weight, weight)
    assert vectors and all(torch.equal(a, b) for a, b in zip(vectors, module.eval().buffers(), strict=True))
    x = (torch.randn(shape),) if shape else (torch.arange(4), 4) if name == "classes" else (torch.arange(4),)
    module[0](*x).square().sum().backward()
    assert module[0].parametrizations.weight.original.grad.abs().sum() > 0
    assert spectral_norm(module)[0].parametrizations.weight[0] is module[0].parametrizations.weight[0]
    assert len(module[0].parametrizations.weight) == 1  # a second time does nothing
    clone = copy.deepcopy(module)
    assert torch.equal(clone[0].weight, weight) and type(clone[0]) is type(module[0])
    fresh = spectral_norm(nn.Sequential(make())).eval()
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh[0].weight, weight)


def test_spectral_norm_is_computed_outside_autocast():
    module = spectral_norm(nn.Sequential(Conv2d(3, 4, 3), norm("batch", 4), nn.Flatten(), nn.Linear(16, 1)))
    seen = []
    for layer in (module[0], module[3]):
        inner = layer.parametrizations.weight[0].norm
        inner.register_forward_hook(lambda m, args, out: seen.append((torch.is_autocast_enabled("cpu"), out.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        assert module(torch.randn(2, 3, 4, 4)).dtype == torch.bfloat16
    assert seen == [(False, torch.float32)] * 2
    assert not parametrize.is_parametrized(module[1])  # a batch norm's scale is no matrix


def test_spectral_norm_refuses_zero_weights():
    module = nn.Sequential(nn.Linear(2, 2), Convolution(2, 2, gain=0.0))
    with pytest.raises(ValueError, match="those of 1 are all zero"):
        spectral_norm(module)
    assert not parametrize.is_parametrized(module[0])


def network():
    return nn.Sequential(
        Conv2d(8, 256, 4, 2, 1),
        nn.ConvTranspose2d(256, 64, 4, 2, 1),
        nn.Linear(64, 200),
        norm("batch", 200),
        norm("group", 64),
        ClassEmbedding(100, 40, 0.3),
        SelfAttention(64),
        Convolution(16, 16, gain=0.0),
        norm("instance", 4),
    )


def test_initialise_paper_changes_nothing_and_unknown_is_refused():
    module = network()
    before = copy.deepcopy(module.state_dict())
    initialise(module, "paper")
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    with pytest.raises(ValueError, match="unknown init 'xavier', allowed: paper, normal, kaiming, orthogonal"):
        initialise(module, "xavier")
    with pytest.raises(ValueError, match="before spectral norm, which 0 has already"):
        initialise(spectral_norm(nn.Sequential(nn.Linear(2, 2))), "normal")


@pytest.mark.parametrize("kind", INITS[1:])
def test_initialise(kind):
    torch.manual_seed(0)
    module = network()
    before = copy.deepcopy(module)
    for parameter in (p for i in (0, 1, 2, 3, 4, 8) for p in module[i].parameters()):
        parameter.data.add_(0.3)
    initialise(module, kind)
    conv, transposed, linear, batch, group, classes, attention, zero, instance = module
    for layer in (conv, transposed, linear, batch, group, instance):
        assert not layer.bias.any()
    for layer in (batch, group, instance):
        assert torch.equal(layer.weight, torch.ones_like(layer.weight))
    assert not attention.gain.any() and not zero.weight.any()  # meant to be zero
    weights = [conv.weight, transposed.weight, linear.weight, attention.query.weight]
    if kind == "orthogonal":
        for w in (conv.weight, transposed.weight.transpose(0, 1), linear.weight):
            m = w.detach().flatten(1).double()
            m = m if m.shape[0] <= m.shape[1] else m.T
            torch.testing.assert_close(m @ m.T, torch.eye(len(m), dtype=torch.float64), rtol=0, atol=1e-5)
        m = classes.weight.detach().T.double()
        torch.testing.assert_close(m @ m.T, torch.eye(40).double() * (m @ m.T)[0, 0], rtol=0, atol=1e-4)
    else:
        gain = math.sqrt(2 / 1.04)
        fans = [8 * 16, 256 * 16 / 4, 64, 64]
        for w, fan in zip(weights, fans):
            expected = 0.02 if kind == "normal" else gain / math.sqrt(fan)
            assert w.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * w.numel()))
            assert abs(w.mean().item()) < 4 * expected / math.sqrt(w.numel())
    size = before[5].weight.square().mean().sqrt().item()
    assert classes.weight.square().mean().sqrt().item() == pytest.approx(size, rel=4 / math.sqrt(2 * 4000))
    assert not torch.equal(classes.weight, before[5].weight)


def test_kaiming_keeps_the_second_moment():
    """He's rule: behind LeakyReLU 0.2, unit second moments stay, also through a transposed convolution of stride two."""
    torch.manual_seed(0)
    x = F.leaky_relu(torch.randn(16, 64, 16, 16), 0.2) * math.sqrt(2 / 1.04)
    for layer in (Conv2d(64, 64, 3), nn.ConvTranspose2d(64, 64, 4, 2, 1), Conv2d(64, 64, 4, 2, 1, groups=4)):
        initialise(layer, "kaiming")
        y = layer(x)[:, :, 2:-2, 2:-2]
        assert y.square().mean().item() == pytest.approx(2 / 1.04 * x.square().mean().item(), rel=0.1)
    assert fan_in(nn.ConvTranspose2d(6, 4, 4, 2, 1, groups=2)) == 3 * 16 / 4


def test_dcgan_scheme():
    torch.manual_seed(0)
    module = network()
    embedding = module[5].weight.clone()
    dcgan_(module)
    for layer in (module[0], module[1], module[2], module[6].query):
        assert layer.weight.std().item() == pytest.approx(0.02, rel=4 / math.sqrt(2 * layer.weight.numel()))
    for layer in (module[0], module[1], module[2], module[3]):
        assert not layer.bias.any()
    assert module[3].weight.mean().item() == pytest.approx(1, abs=0.006)
    assert module[3].weight.std().item() == pytest.approx(0.02, rel=0.25)
    assert torch.equal(module[5].weight, embedding) and torch.equal(module[4].weight, torch.ones(64)) and not module[6].gain.any()
