"""What every generator and discriminator of the classics keeps to: shapes, labels, precision, second derivatives."""

import pytest
import torch
from torch import nn

from nets.dcgan import DCGANDiscriminator, DCGANGenerator
from nets.mlp import MLPDiscriminator, MLPGenerator
from nets.patch import PatchDiscriminator, logit_size
from nets.resnet import ResNetDiscriminator, ResNetGenerator

GENERATORS = {"dcgan": DCGANGenerator, "resnet": ResNetGenerator, "mlp": MLPGenerator}
DISCRIMINATORS = {
    "dcgan": DCGANDiscriminator,
    "resnet": ResNetDiscriminator,
    "patch": lambda *args, **options: PatchDiscriminator(*args, field=16, **options),
    "mlp": MLPDiscriminator,
}
each_generator = pytest.mark.parametrize("build", GENERATORS.values(), ids=GENERATORS)
each_discriminator = pytest.mark.parametrize("build", DISCRIMINATORS.values(), ids=DISCRIMINATORS)
labels = torch.tensor([0, 2, 1])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def logit_shape(d, n=3):
    return (n,) if d.receptive_field is None else (n, *[logit_size(d.receptive_field, d.resolution)] * 2)


@each_generator
@pytest.mark.parametrize("resolution", [16, 28, 32, 64, 128])
@pytest.mark.parametrize("channels, classes", [(1, 0), (1, 3), (3, 0), (3, 3)])
def test_generators_at_every_resolution(build, resolution, channels, classes):
    g = build(6, 8, resolution, channels, classes=classes, embedding_dim=4)
    assert (g.z_dim, g.classes, g.resolution, g.channels) == (6, classes, resolution, channels)
    z = torch.randn(3, 6)
    images = g.eval()(z, labels)
    assert images.shape == (3, channels, resolution, resolution) and images.dtype == torch.float32
    assert images.abs().max() <= 1 and images.isfinite().all()
    assert torch.equal(images, g(z, labels.flip(0))) == (classes == 0)
    if not classes:
        assert torch.equal(images, g(z))


@each_discriminator
@pytest.mark.parametrize("resolution", [16, 28, 32, 64, 128])
@pytest.mark.parametrize("channels, conditioning", [(1, "none"), (3, "none"), (1, "concat"), (3, "concat"), (3, "projection")])
def test_discriminators_at_every_resolution(build, resolution, channels, conditioning):
    d = build(4, resolution, channels, classes=3, conditioning=conditioning, embedding_dim=4, class_head=True).eval()
    images = torch.randn(3, channels, resolution, resolution)
    features = d.features(images, labels)
    assert features.ndim in (2, 4) and len(features) == 3 and d.class_logits(features).shape == (3, 3)
    logits = d.logits(features, labels)
    assert logits.shape == logit_shape(d) and logits.dtype == torch.float32 and logits.isfinite().all()
    assert torch.equal(d(images, labels), logits)
    told = torch.equal(d(images, labels), d(images, torch.tensor([1, 1, 0])))
    assert told == (conditioning == "none")
    assert torch.equal(d(images, labels)[1:], d(images, torch.tensor([1, 2, 1]))[1:])  # only the first sample's label differs


@each_discriminator
@pytest.mark.parametrize("conditioning", ["none", "concat", "projection"])
def test_every_parameter_is_used(build, conditioning):
    d = build(4, 16, 3, classes=3, conditioning=conditioning, class_head=True)
    features = d.features(torch.randn(3, 3, 16, 16), labels)
    (d.logits(features, labels).sum() + d.class_logits(features).square().sum()).backward()
    assert [name for name, parameter in d.named_parameters() if parameter.grad is None] == []
    assert (d.embedding is None) == (conditioning != "concat") and (d.projection is None) == (conditioning != "projection")


@each_discriminator
@pytest.mark.parametrize("conditioning", ["none", "concat", "projection"])
def test_labels_are_ignored_without_classes(build, conditioning):
    d, images = build(2, 16, 3, conditioning=conditioning).eval(), torch.randn(3, 3, 16, 16)
    assert torch.equal(d(images), d(images, labels)) and d.class_head is None
    with pytest.raises(ValueError, match="built without class_head"):
        d.class_logits(d.features(images))
    with pytest.raises(ValueError, match="a class head needs classes"):
        build(2, 16, 3, class_head=True)


@each_discriminator
@pytest.mark.parametrize("conditioning", ["concat", "projection"])
def test_labels_that_are_missing_or_impossible(build, conditioning):
    d, images = build(2, 16, 3, classes=3, conditioning=conditioning), torch.randn(3, 3, 16, 16)
    for wrong, message in ((None, "needs labels"), (labels + 1, "label 3 is outside 0..2"), (labels[:2], "labels must be")):
        with pytest.raises(ValueError, match=message):
            d(images, wrong)
    with pytest.raises(ValueError, match="conditioning=concatt is unknown; allowed: none, concat, projection"):
        build(2, 16, 3, classes=3, conditioning="concatt")
    with pytest.raises(ValueError, match=r"needs images \(n, 3, 16, 16\), found \(3, 1, 16, 16\)"):
        d(images[:, :1], labels)


@each_generator
def test_wrong_latents_and_labels_of_a_generator(build):
    g = build(6, 2, 16, 3, classes=3)
    with pytest.raises(ValueError, match=r"needs latents \(n, 6\), found \(3, 6, 1, 1\)"):
        g(torch.randn(3, 6, 1, 1), labels)
    with pytest.raises(ValueError, match="needs labels"):
        g(torch.randn(3, 6))


@each_discriminator
def test_projection_is_the_inner_product_of_what_the_logit_sees_with_the_class(build):
    d = build(2, 16, 3, classes=3, conditioning="projection").eval().double()
    features = d.features(torch.randn(3, 3, 16, 16, dtype=torch.float64), labels)
    vectors = d.projection.weight[labels]
    if features.ndim == 2:
        seen = features
    elif d.receptive_field is None:
        seen = features.sum((2, 3))
    else:  # a 4x4 window over the map with a border of one
        padded = nn.functional.pad(features, (1, 1, 1, 1))
        seen = padded.unfold(2, 4, 1).unfold(3, 4, 1).sum((4, 5)).movedim(1, -1)
        vectors = vectors[:, None, None]
    logits = d.logits(features, labels)
    d.projection.weight.data.zero_()
    assert torch.allclose(logits, d.logits(features, labels) + (seen * vectors).sum(-1), rtol=1e-10, atol=1e-12)


@each_discriminator
def test_bfloat16_inside_and_float32_at_the_ends(build):
    d, images = build(4, 16, 3, classes=3, conditioning="projection", class_head=True), torch.randn(3, 3, 16, 16)
    inside = []
    for layer in d.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer not in (d.head, d.class_head):
            layer.register_forward_hook(lambda *call: inside.append(call[-1].dtype))
    heads = []
    d.head.register_forward_hook(lambda *call: heads.append((call[1][0].dtype, call[-1].dtype)))
    exact = d.eval()(images, labels)
    assert set(inside) == {torch.float32}
    inside.clear()
    d.set_precision(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):  # a region around it does not reach the heads
        features = d.features(images, labels)
        logits, class_logits = d.logits(features, labels), d.class_logits(features)
    assert set(inside) == {torch.bfloat16} and heads[-1] == (torch.float32, torch.float32)
    assert features.dtype == logits.dtype == class_logits.dtype == torch.float32
    assert 0 < (logits - exact).abs().max() < 0.05 * max(1, exact.abs().max())
    logits.sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in d.parameters())
    d.set_precision(None)
    assert torch.equal(d(images, labels), exact)


@each_generator
def test_a_generator_makes_its_image_in_float32(build):
    g, z = build(6, 8, 16, 3), torch.randn(3, 6)
    exact = g.eval()(z)
    seen = []
    g.output.register_forward_hook(lambda *call: seen.append((call[1][0].dtype, call[-1].dtype)))
    bodies = []
    next(m for m in g.modules() if isinstance(m, nn.Linear | nn.ConvTranspose2d)).register_forward_hook(
        lambda *call: bodies.append(call[-1].dtype)
    )
    g.set_precision(torch.bfloat16)
    images = g(z)
    assert images.dtype == torch.float32 and seen == [(torch.float32, torch.float32)] and bodies == [torch.bfloat16]
    assert 0 < (images - exact).abs().max() < 0.05


@each_discriminator
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_second_derivatives(build, norm):
    """The gradient of a penalty sum ||d logit / d image||^2, against finite differences along the whole gradient."""
    options = {} if build is MLPDiscriminator else {"norm": norm, "attention": (8,)}
    d = build(4, 16, 1, classes=3, conditioning="projection", **options).double()
    for name, parameter in d.named_parameters():
        if name.endswith("gain"):
            parameter.data.fill_(0.5)
    images = torch.randn(3, 1, 16, 16, dtype=torch.float64, requires_grad=True)

    def penalty(create_graph):
        logits = d(images, labels)
        return torch.autograd.grad(logits.sum(), images, create_graph=create_graph)[0].square().sum()

    value = penalty(True)
    parameters = list(d.parameters())
    grads = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    slope = sum(g.square().sum() for g in grads).sqrt()
    assert slope > 0
    # so small a step that hardly a unit crosses its kink, where the penalty jumps
    step, values = 1e-7, []
    for sign in (1, -2):
        for parameter, grad in zip(parameters, grads):
            parameter.data.add_(sign * step * grad / slope)
        values.append(penalty(False))
    assert torch.isclose((values[0] - values[1]) / (2 * step), slope, rtol=1e-5)
