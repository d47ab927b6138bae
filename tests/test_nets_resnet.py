"""WGAN-GP's residual networks: the order of operations, initialisation, blocks that may be switched."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nets.layers import NORMS, SelfAttention, StochasticDepth
from nets.resize import DOWNSAMPLES, UPSAMPLES
from nets.resnet import DownBlock, ResNetDiscriminator, ResNetGenerator, UpBlock
from nets.shortcut import SHORTCUTS


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def unused(net, result):
    parameters = dict(net.named_parameters())
    grads = torch.autograd.grad(result.square().sum(), parameters.values(), allow_unused=True)
    return [name for name, grad in zip(parameters, grads) if grad is None]


def conv(layer, x):
    return F.conv2d(x, layer.weight, layer.bias, padding=layer.kernel_size[0] // 2)


def twice(x):
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def halved(x):
    return (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4


def test_the_generator_is_the_appendix_written_out():
    g = ResNetGenerator(8, 6, 32, 3).double()
    z = torch.randn(4, 8, dtype=torch.float64)

    def norm(layer, x):
        return F.batch_norm(x, None, None, layer.weight, layer.bias, training=True)

    x = F.linear(z, g.first[0].weight, g.first[0].bias).view(4, 6, 4, 4)
    blocks = [block for block in g.blocks if isinstance(block, UpBlock)]
    assert len(blocks) == 3
    for block in blocks:
        y = conv(block.conv1[-1], twice(F.relu(norm(block.norm1, x))))
        y = conv(block.conv2, F.relu(norm(block.norm2, y)))
        x = conv(block.project, twice(x)) + y
    expected = conv(g.output[0], F.relu(norm(g.norm, x))).tanh()
    assert torch.allclose(g(z), expected, rtol=1e-10, atol=1e-12)


def test_the_critic_is_the_appendix_written_out():
    d = ResNetDiscriminator(6, 32, 3).double()
    first, second, third, fourth = (block for block in d.blocks if isinstance(block, DownBlock))
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    x = conv(first.project, halved(images)) + halved(conv(first.conv2[0], F.relu(conv(first.conv1, images))))
    x = halved(conv(second.project, x)) + halved(conv(second.conv2[0], F.relu(conv(second.conv1, F.relu(x)))))
    for block in (third, fourth):
        x = x + conv(block.conv2, F.relu(conv(block.conv1, F.relu(x))))
    features = F.relu(x).mean((2, 3))
    assert x.shape[2:] == (8, 8) and torch.allclose(d.features(images), features, rtol=1e-10, atol=1e-12)
    assert torch.allclose(d(images), F.linear(features, d.head.weight, d.head.bias)[:, 0], rtol=1e-10, atol=1e-12)


def test_weights_at_birth():
    """Uniform, twice the variance in the branches of blocks; biases zero."""
    g, d = ResNetGenerator(32, 48, 32, 3), ResNetDiscriminator(48, 32, 3, classes=4, class_head=True)
    blocks = [m for m in (*g.modules(), *d.modules()) if isinstance(m, UpBlock | DownBlock)]
    branches = {layer for block in blocks for part in (block.conv1, block.conv2) for layer in part.modules()}
    checked = 0
    for layer in (*g.modules(), *d.modules()):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            outputs, inputs = (n * layer.weight[0, 0].numel() for n in layer.weight.shape[:2])
            std = math.sqrt((4 if layer in branches else 2) / (inputs + outputs))
            spread = layer.weight.std() / std
            assert abs(spread - 1) < (0.05 if layer.weight.numel() > 1000 else 0.2)
            assert layer.weight.abs().max() <= math.sqrt(3) * std * 1.0001
            assert layer.bias is None or not layer.bias.any()
            checked += 1
    assert checked == 2 + 3 * 3 + 2 + 2 * 3 + 2 * 2


@pytest.mark.parametrize("resolution, sizes", [(8, [4, 4, 4]), (16, [8, 8, 8]), (28, [14, 14, 14]), (64, [32, 16, 8, 8, 8])])
def test_the_critic_halves_down_to_twice_the_base(resolution, sizes):
    d, shapes = ResNetDiscriminator(4, resolution, 1), []
    for block in d.blocks:
        if isinstance(block, DownBlock):
            block.register_forward_hook(lambda *call: shapes.append(call[-1].shape[-1]))
    assert d.features(torch.randn(2, 1, resolution, resolution)).shape == (2, 4) and shapes == sizes


@pytest.mark.parametrize("upsample", UPSAMPLES)
@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_every_way_up_and_every_shortcut(upsample, shortcut):
    g = ResNetGenerator(8, 4, 28, 1, upsample=upsample, shortcut=shortcut, attention=(7, 14, 28), classes=3, embedding_dim=2)
    images = g(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
    assert images.shape == (4, 1, 28, 28) and not unused(g, images)
    assert sum(isinstance(m, SelfAttention) for m in g.modules()) == 3


@pytest.mark.parametrize("downsample", DOWNSAMPLES)
@pytest.mark.parametrize("norm", NORMS)
def test_every_way_down_and_every_norm(downsample, norm):
    d = ResNetDiscriminator(
        4, 32, 3, downsample=downsample, norm=norm, attention=(16, 8), minibatch_stddev=True, dropout=0.2, survival=0.8
    )
    d.eval()
    assert not unused(d, d(torch.randn(4, 3, 32, 32))) and d.head.in_features == 5
    g = ResNetGenerator(8, 4, 16, 3, norm=norm)
    assert not unused(g, g(torch.randn(4, 8)))
    biased = norm not in ("batch", "instance")
    assert (g.blocks[1].conv1[-1].bias is not None) == biased == (d.blocks[2].conv1.bias is not None)
    assert d.blocks[0].conv1.bias is not None  # there is no norm behind the first


def test_attention_needs_its_map():
    for build in (lambda: ResNetGenerator(8, 4, 32, 3, attention=(64,)), lambda: ResNetDiscriminator(4, 32, 3, attention=(4,))):
        with pytest.raises(ValueError, match="no feature map of (64|4) pixels"):
            build()


def test_stochastic_depth():
    g, d = ResNetGenerator(8, 4, 32, 3, survival=0.5), ResNetDiscriminator(4, 32, 3, survival=0.4)
    assert [m.survival for m in g.modules() if isinstance(m, StochasticDepth)] == [1.0, 0.75, 0.5]
    survivals = [m.survival for m in d.modules() if isinstance(m, StochasticDepth)]
    assert survivals == pytest.approx([1.0, 0.8, 0.6, 0.4])
    images = torch.randn(16, 3, 32, 32)
    assert not torch.equal(d(images), d(images)) and torch.equal(d.eval()(images), d(images))
    up, down, x = g.blocks[1], d.blocks[0], torch.randn(2, 4, 8, 8)
    up.depth = down.depth = nn.Threshold(torch.inf, 0.0)  # a branch that never survives leaves the shortcut
    assert torch.allclose(up(x), conv(up.project, twice(x)), rtol=1e-4, atol=1e-6)
    assert torch.allclose(down(images), conv(down.project, halved(images)), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="survival=0.5 needs residual blocks: shortcut=identity, found shortcut=gated"):
        ResNetGenerator(8, 4, 32, 3, shortcut="gated", survival=0.5)


def test_batch_coupling_and_dropout():
    images = torch.randn(4, 3, 16, 16)
    for on in (True, False):
        d = ResNetDiscriminator(4, 16, 3, minibatch_stddev=on).eval()
        assert torch.allclose(d(images)[:1], d(images[:1]), rtol=0, atol=1e-6) != on
    d = ResNetDiscriminator(4, 16, 3, dropout=0.5)
    assert not torch.equal(d(images), d(images)) and torch.equal(d.eval()(images), d(images))
