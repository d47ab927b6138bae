"""gan=vanilla (arXiv:1406.2661): perceptrons, the two losses of G, images and points."""

import math

import pytest
import torch
import torch.nn.functional as F
from stub_batch import StubBatch, images
from tiny_gan import assert_trains, build, engine
from torch import nn

from errors import UserError


@pytest.mark.parametrize("loss", ["minimax", "nonsaturating"])
def test_both_losses_of_g(loss):
    """D: ascent on log s(D(x)) + log(1 - s(D(G(z)))); G: descent on log(1 - s), or ascent on log s (section 3)."""
    gan, batch = build("vanilla", {}, 8, loss=loss), StubBatch(images(resolution=8))
    judged, logits = [], gan.discriminator.logits

    def kept(*args):
        judged.append(logits(*args))
        judged[-1].retain_grad()
        return judged[-1]

    gan.discriminator.logits = kept
    d = gan.discriminator_loss(batch)["adversarial"]
    real, fake = judged
    torch.testing.assert_close(d, -real.sigmoid().log() - (1 - fake.sigmoid()).log())
    del judged[:]
    g = gan.generator_loss(batch)["adversarial"]
    (f,) = judged
    s = f.sigmoid()
    torch.testing.assert_close(g, (1 - s).log() if loss == "minimax" else -s.log())
    g.mean().backward()
    torch.testing.assert_close(f.grad, (-s if loss == "minimax" else s - 1).detach() / len(f))
    assert any(p.grad.any() for p in gan.generator.parameters())


@pytest.mark.parametrize("logit", [-40.0, 0.0, 30.0])
def test_minimax_saturates_where_d_is_sure_and_the_other_does_not(logit):
    slopes = []
    for loss in ("minimax", "nonsaturating"):
        gan, f = build("vanilla", {}, 8, loss=loss), torch.full((4,), logit, requires_grad=True)
        gan.loss.generator(None, f).sum().backward()
        slopes.append(float(f.grad[0]))
    expected = 1 / (1 + math.exp(-logit))
    assert slopes[0] == pytest.approx(-expected, rel=1e-5)
    assert slopes[1] == pytest.approx(-1 / (1 + math.exp(logit)), rel=1e-5, abs=1e-12)


def test_the_default_is_the_nonsaturating_loss_without_a_penalty():
    gan = build("vanilla")
    assert type(gan.loss).__name__ == "NonSaturating" and type(gan.penalty).__name__ == "NoPenalty"


def test_perceptrons():
    gan = build("vanilla", {"width": 7, "depth": 3, "z_dim": 5}, 16, 3)
    assert not any(isinstance(m, nn.Conv2d | nn.ConvTranspose2d) for m in gan.modules())
    nets = (gan.generator, gan.discriminator)
    g, d = ([tuple(m.weight.shape) for m in net.modules() if isinstance(m, nn.Linear)] for net in nets)
    assert g == [(7, 5), (7, 7), (7, 7), (768, 7)] and d == [(7, 768), (7, 7), (7, 7), (1, 7)]


@pytest.mark.parametrize("loss", ["nonsaturating", "lsgan", "wasserstein", "relativistic"])
@pytest.mark.parametrize("penalty", ["none", "r1", "r1_r2", "wgan_gp"])
def test_points_of_the_plane(loss, penalty):
    driver = engine("vanilla", {}, 1, 2, kind="points", loss=loss, penalty=penalty)
    means = assert_trains(driver, steps=2)
    assert means["discriminator/loss"] == means["discriminator/loss"]
    points = driver.ema_gan().sample(torch.randn(7, 4))
    assert points.shape == (7, 2, 1, 1) and points.dtype == torch.float32


def test_points_are_not_bounded():
    gan = build("vanilla", {}, 1, 2, kind="points")
    assert not any(isinstance(m, nn.Tanh) for m in gan.modules())
    assert gan.sample(1000 * torch.randn(9, 4)).abs().max() > 1
    assert build("vanilla").sample(1000 * torch.randn(9, 4)).abs().max() <= 1


@pytest.mark.parametrize("conditioning", ["concat", "projection"])
def test_conditional(conditioning):
    gan = build("vanilla", {"conditioning": conditioning}, 8, 1, 3)
    z, x = torch.randn(4, 4), images(resolution=8)
    one, other = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
    assert (gan.sample(z, one) - gan.sample(z, other)).abs().amax((1, 2, 3)).min() > 0
    difference = gan.discriminator(x, one) - gan.discriminator(x, other)
    assert difference.abs().min() > 0
    if conditioning == "projection":
        vectors = gan.discriminator.projection.weight
        torch.testing.assert_close(difference, gan.discriminator.features(x) @ (vectors[0] - vectors[1]), atol=1e-6, rtol=1e-4)


def test_the_paper_s_256_px_are_refused_with_a_count():
    with pytest.raises(UserError) as error:
        build("vanilla", {"width": 512, "depth": 3}, 256, 3)
    message = str(error.value)
    assert "\n" not in message and message.startswith("gan=vanilla: 256x256 pixels of 3 channels take 101 million parameters")
    for word in ("at gan.width=512", "set dataset.resolution=64 or a gan.width of at most 506 or gan=dcgan"):
        assert word in message


@pytest.mark.parametrize("options, data", [
    ({"width": 512, "depth": 3}, (256, 3)), ({"width": 8000, "depth": 3}, (16, 1)), ({"width": 2000, "depth": 90}, (32, 3)),
])  # fmt: skip
def test_the_width_that_is_advised_is_allowed(options, data):
    with pytest.raises(UserError) as error:
        build("vanilla", options, *data)
    width = int(str(error.value).split("a gan.width of at most ")[1].split(" ")[0])
    with torch.device("meta"):
        gan = build("vanilla", {**options, "width": width}, *data)
        with pytest.raises(UserError):
            build("vanilla", {**options, "width": width + 1}, *data)
    assert sum(p.numel() for p in gan.discriminator.parameters()) < 1.02e8


def test_points_are_not_told_to_have_fewer_pixels():
    with pytest.raises(UserError) as error:
        build("vanilla", {"width": 20000, "depth": 3}, 1, 2, kind="points")
    assert "resolution" not in str(error.value) and "dcgan" not in str(error.value) and "gan.width of at most" in str(error.value)


def test_loss_and_gradient_stay_finite_when_d_is_certain():
    gan, batch = build("vanilla", {}, 8, loss="minimax"), StubBatch(images(resolution=8))
    with torch.no_grad():
        gan.discriminator.head.weight.mul_(1e4)
    terms = gan.discriminator_loss(batch), gan.generator_loss(batch)
    sum(term["adversarial"].mean() for term in terms).backward()
    assert all(p.grad.isfinite().all() for p in gan.parameters())
    assert F.softplus(torch.tensor(40.0)) == 40
