"""Every model under the driver: data, resolutions, networks, precision; every switch of the networks acts."""

import pytest
import torch
from stub_batch import StubBatch, images
from tiny_gan import CLASSICS, CONVOLUTIONAL, LABELLED, assert_trains, build, conditional, engine

from gans import GANS


def assert_samples(gan, resolution, channels, classes):
    labels = torch.arange(5) % classes if gan.conditional else None
    samples = gan.sample(torch.randn(5, gan.z_dim), labels)
    assert samples.shape == (5, channels, resolution, resolution) and samples.dtype == torch.float32
    assert samples.min() >= -1 and samples.max() <= 1 and samples.std() > 0


def test_the_seven_classics_are_there():
    assert {*CLASSICS, "r3gan"} <= set(GANS) and all(GANS[name].Options().name == name for name in (*CLASSICS, "r3gan"))


@pytest.mark.parametrize("resolution", [16, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CLASSICS)
def test_every_resolution(name, channels, resolution):
    driver = engine(name, {}, resolution, channels, 3 if name in LABELLED else 0)
    assert_trains(driver, steps=2)
    assert_samples(driver.ema_gan(), resolution, channels, 3)


@pytest.mark.parametrize("resolution", [20, 24, 28, 56, 96, 112])
def test_other_resolutions_that_halving_reaches(resolution):
    driver = engine("dcgan", {}, resolution)
    assert_trains(driver)
    assert_samples(driver.ema_gan(), resolution, 1, 0)


@pytest.mark.parametrize("name", CLASSICS)
def test_conditional(name):
    classes, options = conditional(name)
    driver = engine(name, options, 16, 3, classes)
    assert driver.gan.conditional
    assert_trains(driver, steps=2)
    assert_samples(driver.ema_gan(), 16, 3, classes)


@pytest.mark.parametrize("name", [name for name in CLASSICS if name not in LABELLED])
def test_labels_that_nobody_asked_for_are_left_alone(name):
    driver = engine(name, {}, 16, 1, classes=3)
    assert not driver.gan.conditional
    assert_trains(driver)


@pytest.mark.parametrize("discriminator", ["dcgan", "resnet", "patch"])
@pytest.mark.parametrize("generator", ["dcgan", "resnet"])
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_every_network_in_every_model(name, generator, discriminator):
    classes, told = conditional(name)
    options = {"generator": generator, "discriminator": discriminator, **told}
    options |= {"patch_field": 16} if discriminator == "patch" else {}
    driver = engine(name, options, 16, 3, classes)
    assert generator in type(driver.gan.generator).__name__.lower()
    assert discriminator in type(driver.gan.discriminator).__name__.lower()
    assert_trains(driver, steps=2)
    assert_samples(driver.ema_gan(), 16, 3, classes)


# switches ---------------------------------------------------------------------------------------------------------------------

RESNETS = {"generator": "resnet", "discriminator": "resnet"}
PATCH = {"discriminator": "patch", "patch_field": 16}
SWITCHES = [
    # model, what it has besides, the switch, the network whose result it changes; the defaults are the networks' own
    # (transposed, strided, none, batch, batch; resnet: resize, avg_pool, identity, batch, none; wgan_gp's critic: layer)
    *(("dcgan", {}, {"upsample": kind}, "generator") for kind in ("resize", "pixel_shuffle", "fir")),
    *(("wgan_gp", RESNETS, {"upsample": kind}, "generator") for kind in ("transposed", "pixel_shuffle", "fir")),
    *(("lsgan", {}, {"downsample": kind}, "discriminator") for kind in ("avg_pool", "fir")),
    *(("dcgan", RESNETS, {"downsample": kind}, "discriminator") for kind in ("strided", "fir")),
    *(("dcgan", PATCH, {"downsample": kind}, "discriminator") for kind in ("avg_pool", "fir")),
    *(("dcgan", {}, {"shortcut": kind}, "generator") for kind in ("identity", "gated", "egs")),
    *(("dcgan", RESNETS, {"shortcut": kind}, "generator") for kind in ("none", "gated", "egs")),
    *(("dcgan", {}, {"norm_g": kind}, "generator") for kind in ("instance", "layer", "group", "none")),
    *(("dcgan", {}, {"norm_d": kind}, "discriminator") for kind in ("instance", "layer", "group", "none")),
    *(("wgan_gp", RESNETS, {"norm_g": kind}, "generator") for kind in ("instance", "layer", "group", "none")),
    *(("wgan_gp", RESNETS, {"norm_d": kind}, "discriminator") for kind in ("batch", "instance", "none")),
    ("cgan", {"classes": 3}, {"spectral_norm_g": True}, "generator"),
    ("cgan", {"classes": 3, "conditioning": "projection"}, {"spectral_norm_d": True}, "discriminator"),
    ("wgan_gp", RESNETS, {"spectral_norm_d": True}, "discriminator"),
    ("lsgan", {}, {"attention_g": [8]}, "generator"),
    ("wgan_gp", {}, {"attention_d": [8, 4]}, "discriminator"),
    ("dcgan", RESNETS, {"attention_g": [8]}, "generator"),
    ("dcgan", RESNETS, {"attention_d": [8]}, "discriminator"),
    ("dcgan", PATCH, {"attention_d": [8]}, "discriminator"),
    ("acgan", {"classes": 3}, {"minibatch_stddev": True}, "discriminator"),
    ("dcgan", RESNETS, {"minibatch_stddev": True}, "discriminator"),
    ("dcgan", {"shortcut": "identity"}, {"survival": 0.3}, "generator"),
    ("dcgan", RESNETS, {"survival": 0.3}, "generator"),
    ("dcgan", {"discriminator": "resnet"}, {"survival": 0.3}, "discriminator"),
    *(("dcgan", {"discriminator": kind}, {"dropout": 0.5}, "discriminator") for kind in ("dcgan", "resnet")),
    ("dcgan", PATCH, {"dropout": 0.5}, "discriminator"),
    ("vanilla", {}, {"dropout": 0.5}, "discriminator"),
    *((name, {}, {"init": kind}, part) for kind in ("normal", "kaiming", "orthogonal")
      for name in ("dcgan", "vanilla") for part in ("generator", "discriminator")),
    *(("dcgan", {**PATCH, "resolution": 32}, {"patch_field": field}, "discriminator") for field in (1, 34)),
    ("dcgan", PATCH, {"patch_loss": "each"}, "loss"),
    ("dcgan", {}, {"width_g": 3}, "generator"), ("dcgan", {}, {"width_d": 3}, "discriminator"),
    ("vanilla", {}, {"depth": 3}, "generator"), ("vanilla", {}, {"width": 7}, "discriminator"),
    ("dcgan", {"classes": 3, "conditioning": "concat"}, {"embedding_dim": 5}, "generator"),
]  # fmt: skip


def result(gan, part):
    """What a fresh network makes of a fixed input in training mode."""
    labels = torch.tensor([0, 1, 2, 0]) if gan.conditional else None
    torch.manual_seed(7)
    if part == "generator":
        return gan.generator(torch.randn(4, gan.z_dim, generator=torch.Generator().manual_seed(5)), labels)
    return gan.discriminator(images(4, gan.discriminator.resolution), labels)


@pytest.mark.parametrize("name, base, switch, part", SWITCHES, ids=[f"{i}-{n}-{s}" for i, (n, _, s, _) in enumerate(SWITCHES)])
def test_a_switch_acts(name, base, switch, part):
    """It changes what the fresh network makes of an input, from the same seed, and the model trains with it."""
    data = {"resolution": base.get("resolution", 16), "classes": base.get("classes", 0)}
    base = {k: v for k, v in base.items() if k not in data}
    plain, switched = (build(name, options, **data) for options in (base, {**base, **switch}))
    attention = [size for option, sizes in switch.items() if "attention" in option for size in sizes]
    if attention:  # a fresh block is the identity: its gain leaves zero with the first step
        (a, b) = ([key for key, _ in getattr(gan, part).named_parameters() if key.endswith("gain")] for gan in (plain, switched))
        assert len(a) == 0 and len(b) == len(attention)
    elif part == "loss":
        a, b = (gan.discriminator_loss(StubBatch(images(4), None))["adversarial"] for gan in (plain, switched))
        assert (a - b).abs().max() > 1e-6
    else:
        a, b = result(plain, part), result(switched, part)
        assert a.shape != b.shape or (a - b).abs().max() > 1e-6
    driver = engine(name, {**base, **switch}, **data)
    assert_trains(driver)
    if attention:
        assert all(p.any() for key, p in getattr(driver.gan, part).named_parameters() if key.endswith("gain"))


def test_switches_together():
    """All at once, twice differentiated."""
    options = {
        "generator": "resnet", "discriminator": "resnet", "upsample": "fir", "downsample": "fir", "norm_g": "group",
        "norm_d": "layer", "spectral_norm_g": True, "spectral_norm_d": True, "attention_g": [8], "attention_d": [8],
        "minibatch_stddev": True, "survival": 0.5, "dropout": 0.3, "init": "orthogonal", "conditioning": "projection",
        "instance_noise": 0.1, "feature_matching": 0.5,
    }  # fmt: skip
    means = assert_trains(engine("dcgan", options, 32, 3, 3, loss="relativistic", penalty="r1_r2"), steps=2)
    assert means["discriminator/r1"] > 0 and means["generator/loss_feature_matching"] > 0


# precision --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CLASSICS, "r3gan"])
def test_bf16_in_every_model(name):
    """Inner layers compute in bfloat16; images, logits and features leave in fp32."""
    classes, options = conditional(name)
    results = []
    for precision in ("fp32", "bf16"):
        driver = engine(name, options, 16, 3, classes, precision=precision)
        gan, labels = driver.gan, torch.tensor([0, 1, 2, 0])
        fakes = gan.sample(torch.randn(4, gan.z_dim, generator=torch.Generator().manual_seed(2)), labels)
        features = gan.discriminator.features(fakes.detach(), labels)
        logits = gan.discriminator.logits(features, labels)
        assert fakes.dtype == logits.dtype == features.dtype == torch.float32
        results.append((fakes, logits))
        assert_trains(driver, steps=2)
        assert all(p.dtype == torch.float32 for p in gan.parameters())
    (fakes, logits), (low_fakes, low_logits) = results
    assert 0 < (fakes - low_fakes).abs().max() < 0.1
    assert 0 < (logits - low_logits).abs().max() <= 0.2 * logits.abs().max() + 0.05


@pytest.mark.parametrize("discriminator", ["resnet", "patch"])
def test_bf16_with_other_networks_and_penalties(discriminator):
    options = {"generator": "resnet", "discriminator": discriminator, "norm_d": "none", "attention_d": [8]}
    options |= {"patch_field": 16} if discriminator == "patch" else {}
    assert_trains(engine("dcgan", options, 16, 3, precision="bf16", loss="relativistic", penalty="r1_r2"), steps=2)
