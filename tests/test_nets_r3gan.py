"""R3GAN's networks: golden numbers from an independent public implementation, initialisation, precision, bad input."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gans.official import load_official
from nets.r3gan import Discriminator, Generator

CASES = ["cond", "uncond"]


def golden(name):
    tensors = load_file(Path(__file__).parent / "golden" / f"r3gan_{name}.safetensors")
    state = {key.removeprefix("state."): t for key, t in tensors.items() if key.startswith("state.")}
    labels = tensors["in.y"].argmax(1) if "in.y" in tensors else None
    return tensors, state, labels


def assert_near(found, expected, tolerance):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def stage_outputs(net, *inputs):
    outputs = []
    hooks = [stage.register_forward_hook(lambda module, args, out: outputs.append(out)) for stage in net.stages]
    result = net(*inputs)
    for hook in hooks:
        hook.remove()
    return result, outputs


@pytest.mark.parametrize("case", CASES)
def test_golden_generator(case):
    tensors, state, labels = golden(f"generator_{case}")
    net = load_official("r3gan", state, "generator")
    images, stages = stage_outputs(net, tensors["in.z"], labels)
    assert_near(images, tensors["out.image"], 1e-5)
    for i in range(2):
        assert_near(stages[i], tensors[f"out.stage{i}"], 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_golden_discriminator(case):
    tensors, state, labels = golden(f"discriminator_{case}")
    net = load_official("r3gan", state, "discriminator")
    logits, stages = stage_outputs(net, tensors["in.image"], labels)
    assert_near(logits, tensors["out.logit"], 1e-5)
    for i in range(2):
        assert_near(stages[i], tensors[f"out.stage{i}"], 1e-5)
    assert_near(net.basis(stages[2]), tensors["out.stage2"], 1e-5)


def test_initialisation():
    """Standard deviations within 5 standard errors of the formulas; the parameter counts of the CIFAR-10 preset."""
    torch.manual_seed(0)
    widths, groups = [64, 64, 32], [8, 8, 4]
    g = Generator(32, widths, groups, classes=10, embedding_dim=48)
    d = Discriminator(widths[::-1], groups[::-1], classes=10, embedding_dim=64)
    act = math.sqrt(2 / 1.04) * 6**-0.25
    expected = {
        (g, "basis.basis"): 1.0,
        (g, "basis.linear.weight"): 1 / math.sqrt(32 + 48),
        (g, "embedding.weight"): 1 / math.sqrt(10),
        (g, "to_rgb.weight"): 1 / math.sqrt(32),
        (g, "stages.2.before.0.weight"): 1 / math.sqrt(64),
        (d, "from_rgb.weight"): 1 / math.sqrt(3),
        (d, "basis.basis"): 0.25,
        (d, "basis.linear.weight"): 1 / math.sqrt(64),
        (d, "embedding.weight"): 1 / math.sqrt(10 * 64),
        (d, "stages.0.after.1.weight"): 1 / math.sqrt(32),
    }
    for net in (g, d):
        for name, parameter in net.named_parameters():
            kind = name.split(".", 4)[-1]
            if ".blocks." in name:
                fan_in = math.prod(parameter.shape[1:])
                std = {"expand.weight": act / math.sqrt(fan_in), "mix.weight": act / math.sqrt(fan_in)}.get(kind, 0.0)
                expected[net, name] = std
    assert len(expected) == len(list(g.parameters())) + len(list(d.parameters()))
    for (net, name), std in expected.items():
        parameter = net.get_parameter(name)
        if std == 0:
            assert not parameter.any(), name
        else:
            assert abs(parameter.std() / std - 1) < 5 / math.sqrt(2 * parameter.numel()), name
            assert abs(parameter.mean() / std) < 5 / math.sqrt(parameter.numel()), name


def test_parameter_counts_of_the_cifar10_preset():
    with torch.device("meta"):
        g = Generator(64, [768] * 4, [96] * 4, classes=10, embedding_dim=64)
        d = Discriminator([768] * 4, [96] * 4, classes=10, embedding_dim=768)
    assert [sum(p.numel() for p in net.parameters()) for net in (g, d)] == [20_781_952, 21_280_512]


def pair(stages, channels=3, classes=0, **options):
    torch.manual_seed(1)
    widths, groups = [16, 16, 12, 8, 8][:stages], [4, 4, 3, 2, 2][:stages]
    g = Generator(8, widths, groups, classes=classes, channels=channels, **options)
    d = Discriminator(widths[::-1], groups[::-1], classes=classes, channels=channels, **options)
    for net in (g, d):  # a fresh network's blocks are the identity
        for parameter in net.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    return g, d


@pytest.mark.parametrize("stages, channels, classes", [(2, 1, 0), (2, 3, 4), (5, 3, 4), (5, 1, 0), (3, 4, 2)])
def test_shapes(stages, channels, classes):
    g, d = pair(stages, channels, classes, blocks=1, embedding_dim=5)
    labels = torch.arange(2) if classes else None
    images = g(torch.randn(2, 8), labels)
    assert images.shape == (2, channels, 4 * 2 ** (stages - 1), 4 * 2 ** (stages - 1)) and images.dtype == torch.float32
    logits = d(images, labels)
    assert logits.shape == (2,) and logits.dtype == torch.float32
    assert g(torch.randn(0, 8), None if labels is None else labels[:0]).shape[0] == 0


def test_labels_matter_and_an_unconditional_network_ignores_them():
    z, labels = torch.randn(2, 8), torch.tensor([0, 1])
    g, d = pair(2, classes=3)
    assert not torch.allclose(g(z, labels), g(z, labels.flip(0)))
    assert not torch.allclose(d(g(z, labels), labels), d(g(z, labels), labels.flip(0)))
    g, d = pair(2)
    assert torch.equal(g(z, labels), g(z)) and torch.equal(d(g(z), labels), d(g(z)))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_low_precision_is_close_and_leaves_in_fp32(dtype, tolerance):
    g, d = pair(4, classes=3)
    z, labels = torch.randn(8, 8), torch.arange(8) % 3
    images, logits = g(z, labels), d(g(z, labels), labels)
    g.set_precision(dtype, stages=3)
    d.set_precision(dtype, stages=3)
    assert [stage.dtype for stage in g.stages] == [None, dtype, dtype, dtype]
    assert [stage.dtype for stage in d.stages] == [dtype, dtype, dtype, None]
    _, g_stages = stage_outputs(g, z, labels)
    _, d_stages = stage_outputs(d, images, labels)
    assert [x.dtype for x in g_stages] == [torch.float32, dtype, dtype, dtype]
    assert [x.dtype for x in d_stages] == [dtype, dtype, dtype, torch.float32]
    low_images, low_logits = g(z, labels), d(images, labels)
    assert low_images.dtype == low_logits.dtype == torch.float32
    for low, full in ((low_images, images), (low_logits, logits)):
        assert not torch.equal(low, full)
        assert (low - full).norm() < tolerance * full.norm()
    low_logits.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in d.parameters())
    g.set_precision(None)
    d.set_precision(None)
    assert torch.equal(g(z, labels), images) and torch.equal(d(images, labels), logits)


@pytest.mark.parametrize("classes", [0, 3])
def test_ends_stay_in_fp32_when_every_stage_is_low(classes):
    g, d = pair(2, classes=classes)
    for net in (g, d):
        net.set_precision(torch.bfloat16, stages=2)
    seen = []
    d.basis.register_forward_hook(lambda module, args, out: seen.extend([args[0].dtype, out.dtype]))
    labels = torch.tensor([0, 1]) if classes else None
    images = g(torch.randn(2, 8), labels)
    assert images.dtype == d(images, labels).dtype == torch.float32 and seen == [torch.float32] * 2


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_channels_last_is_equal_and_kept(dtype):
    g, d = pair(4)
    z = torch.randn(4, 8)
    for net in (g, d):
        net.set_precision(dtype)
    images, logits = g(z), d(g(z))
    for net in (g, d):
        net.to(memory_format=torch.channels_last)
    found, g_stages = stage_outputs(g, z)
    found_logits, d_stages = stage_outputs(d, images)
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in g_stages + d_stages)
    tolerance = 1e-5 if dtype is None else 0.02
    assert (found - images).norm() < tolerance * images.norm()
    assert (found_logits - logits).norm() < tolerance * logits.norm()


def test_bad_labels():
    g, d = pair(2, classes=3)
    z, images = torch.randn(2, 8), torch.randn(2, 3, 8, 8)
    for call in (lambda labels: g(z, labels), lambda labels: d(images, labels)):
        with pytest.raises(ValueError, match=r"needs labels \(n,\) int64 in 0..2, found none"):
            call(None)
        with pytest.raises(ValueError, match=r"label 3 is outside 0..2"):
            call(torch.tensor([0, 3]))
        with pytest.raises(ValueError, match=r"label -1 is outside 0..2"):
            call(torch.tensor([-1, 0]))
        for labels in (torch.tensor([0]), torch.tensor([[0], [1]]), torch.tensor([0.0, 1.0]), torch.eye(2, 3)):
            with pytest.raises(ValueError, match=r"labels must be \(2,\) int64"):
                call(labels)


def test_bad_shapes():
    g, d = pair(2)
    for z in (torch.randn(2, 7), torch.randn(8), torch.randn(2, 8, 1, 1)):
        with pytest.raises(ValueError, match=r"needs latents \(n, 8\)"):
            g(z)
    for images in (torch.randn(2, 1, 8, 8), torch.randn(2, 3, 16, 16), torch.randn(3, 8, 8)):
        with pytest.raises(ValueError, match=r"needs images \(n, 3, 8, 8\)"):
            d(images)
    with pytest.raises(ValueError, match="3 groups do not divide"):
        Generator(8, [16, 16], [3, 3])
    with pytest.raises(ValueError, match="at least 2 stages"):
        Generator(8, [16], [4])
    with pytest.raises(ValueError, match="one width, cardinality and block count"):
        Discriminator([16, 16], [4])
    with pytest.raises(ValueError, match="at least one block"):
        Discriminator([16, 16], [4, 4], blocks=[0, 1])
