"""DCGAN's networks: shapes and widths, blocks that may be switched, initialisation. Golden numbers: test_official_dcgan.py."""

import pytest
import torch
from torch import nn

from nets.dcgan import DCGANDiscriminator, DCGANGenerator, stages
from nets.layers import NORMS, MinibatchStddev, SelfAttention, StochasticDepth
from nets.resize import DOWNSAMPLES, UPSAMPLES
from nets.shortcut import SHORTCUTS


def all_used(net, result):
    """Whether every parameter has a part in ``result``."""
    parameters = dict(net.named_parameters())
    grads = torch.autograd.grad(result.square().sum(), parameters.values(), allow_unused=True)
    return [name for name, grad in zip(parameters, grads) if grad is None] == []


def test_resolutions_are_a_small_base_doubled():
    found = {r: stages(r) for r in (8, 14, 16, 20, 24, 28, 32, 64, 80, 96, 128, 256)}
    assert found == {
        8: (4, 1), 14: (7, 1), 16: (4, 2), 20: (5, 2), 24: (6, 2), 28: (7, 2), 32: (4, 3), 64: (4, 4), 80: (5, 4), 96: (6, 4),
        128: (4, 5), 256: (4, 6),
    }  # fmt: skip
    for resolution in (0, 1, 4, 7, 9, 15, 18, 22, 30, 36, 100):
        with pytest.raises(ValueError, match=f"resolution {resolution} is not 4, 5, 6 or 7 doubled"):
            stages(resolution)
    for build in (lambda: DCGANGenerator(8, 4, 30, 3), lambda: DCGANDiscriminator(4, 30, 3)):
        with pytest.raises(ValueError, match="resolution 30"):
            build()


@pytest.mark.parametrize("resolution, sizes", [(64, [4, 8, 16, 32]), (28, [7, 14]), (8, [4])])
def test_widths_follow_the_map(resolution, sizes):
    """``width`` channels at half the resolution, twice as many at each smaller size, in both networks."""
    shapes = []
    g, d = DCGANGenerator(8, 3, resolution, 3).eval(), DCGANDiscriminator(5, resolution, 3).eval()
    for stage in (*g.stages, *d.stages):
        stage.register_forward_hook(lambda *call: shapes.append(tuple(call[-1].shape[1:])))
    d(g(torch.randn(2, 8)))
    channels = [resolution // (2 * size) for size in sizes]
    expected = [(3 * c, size, size) for c, size in zip(channels, sizes)]
    assert shapes == expected + [(5 * c, size, size) for c, size in zip(channels[::-1], sizes[::-1])]
    assert d.features(torch.randn(2, 3, resolution, resolution)).shape[1:] == (5 * channels[0], sizes[0], sizes[0])


def test_weights_at_birth():
    torch.manual_seed(0)
    for net in (DCGANGenerator(32, 32, 32, 3), DCGANDiscriminator(32, 32, 3), DCGANDiscriminator(32, 32, 3, norm="layer")):
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                assert abs(layer.weight.std() / 0.02 - 1) < 0.1 and abs(layer.weight.mean()) < 0.002
            elif isinstance(layer, nn.BatchNorm2d):
                assert 0.005 < layer.weight.std() < 0.04 and abs(layer.weight.mean() - 1) < 0.02 and not layer.bias.any()


@pytest.mark.parametrize("norm", NORMS)
def test_a_bias_only_where_the_norm_leaves_it(norm):
    g, d = DCGANGenerator(8, 4, 32, 3, norm=norm), DCGANDiscriminator(4, 32, 3, norm=norm)
    expected = norm not in ("batch", "instance")
    assert all((stage.resize.bias is not None) == expected for stage in g.stages)
    assert all((stage.convolution.bias is not None) == expected for stage in d.stages[1:])
    assert d.stages[0].convolution.bias is None and g.output[0].bias is None and d.head.bias is None
    images = g(torch.randn(4, 8))
    assert all_used(g, images) and all_used(d, d(images.detach()))


@pytest.mark.parametrize("upsample", UPSAMPLES)
@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_every_way_up_and_every_shortcut(upsample, shortcut):
    g = DCGANGenerator(8, 4, 28, 1, upsample=upsample, shortcut=shortcut, attention=(14,), classes=3, embedding_dim=2)
    images = g(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
    assert images.shape == (4, 1, 28, 28) and images.abs().max() <= 1 and all_used(g, images)
    plain = sum(p.numel() for p in DCGANGenerator(8, 4, 28, 1, upsample=upsample).parameters())
    assert sum(p.numel() for p in g.parameters()) > plain


def test_an_identity_shortcut_carries_the_input_of_its_stage():
    g = DCGANGenerator(8, 4, 16, 1, shortcut="identity")
    first, second = g.stages
    second.norm.weight.data.zero_()  # nothing but relu(0) comes from the branch
    second.norm.bias.data.zero_()
    x = first(torch.randn(4, 8, 1, 1))
    expected = second.shortcut.project(x).repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.allclose(second(x), expected)
    assert torch.equal(first.shortcut(x, x + 1), x + 1)  # around the first stage there is none


@pytest.mark.parametrize("downsample", DOWNSAMPLES)
def test_every_way_down(downsample):
    d = DCGANDiscriminator(4, 28, 1, downsample=downsample, attention=(14, 7), dropout=0.5, minibatch_stddev=True)
    assert all_used(d, d(torch.randn(4, 1, 28, 28)))
    assert sum(isinstance(m, SelfAttention) for m in d.modules()) == 2


def test_attention_acts_after_its_map_and_needs_one():
    g, d = DCGANGenerator(8, 8, 32, 3, attention=(8, 16)).eval(), DCGANDiscriminator(8, 32, 3, attention=(4,)).eval()
    assert [isinstance(s.attention, SelfAttention) for s in g.stages] == [False, True, True]
    assert [isinstance(s.attention, SelfAttention) for s in d.stages] == [False, False, True]
    z, images = torch.randn(2, 8), torch.randn(2, 3, 32, 32)
    before = g(z), d(images)
    g.stages[1].attention.gain.data.fill_(1)
    d.stages[2].attention.gain.data.fill_(1)
    assert not torch.equal(before[0], g(z)) and not torch.equal(before[1], d(images))
    for build in (lambda: DCGANGenerator(8, 8, 32, 3, attention=(32,)), lambda: DCGANDiscriminator(8, 32, 3, attention=(12,))):
        with pytest.raises(ValueError, match="no feature map of (32|12) pixels .* this network has (4, 8, 16|16, 8, 4)"):
            build()


def test_stochastic_depth_acts_on_residual_stages_only():
    g = DCGANGenerator(8, 4, 64, 3, shortcut="identity", survival=0.5)
    assert [m.survival for m in g.modules() if isinstance(m, StochasticDepth)] == [1.0, 1.0, 0.75, 0.5]
    z = torch.randn(8, 8)
    assert not torch.equal(g(z), g(z)) and torch.equal(g.eval()(z), g(z))
    with_branch, first = g.stages[1], g.stages[0](z[:, :, None, None])
    with_branch.depth = nn.Threshold(torch.inf, 0.0)  # a branch that never survives leaves the stage's input
    assert torch.equal(with_branch(first), with_branch.shortcut(first, torch.zeros(8, 16, 8, 8)))
    for resolution, shortcut in ((64, "none"), (64, "gated"), (64, "egs"), (8, "identity")):
        with pytest.raises(ValueError, match="survival=0.5 needs residual stages"):
            DCGANGenerator(8, 4, resolution, 3, shortcut=shortcut, survival=0.5)


def test_minibatch_stddev_looks_at_the_batch():
    torch.manual_seed(0)
    images = torch.randn(4, 3, 16, 16)
    for on in (True, False):
        d = DCGANDiscriminator(4, 16, 3, norm="none", minibatch_stddev=on).eval()
        assert any(getattr(m, "batch_coupled", False) for m in d.modules()) == on
        assert torch.allclose(d(images)[:1], d(images[:1]), rtol=0, atol=1e-7) != on
    assert isinstance(DCGANDiscriminator(4, 16, 3, minibatch_stddev=True).minibatch_stddev, MinibatchStddev)


def test_dropout_acts_in_training_only():
    d, images = DCGANDiscriminator(4, 16, 3, norm="none", dropout=0.5), torch.randn(4, 3, 16, 16)
    assert not torch.equal(d(images), d(images)) and torch.equal(d.eval()(images), d(images))
