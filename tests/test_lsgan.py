"""gan=lsgan (arXiv:1611.04076): the targets of fakes and reals, and of fakes for G."""

import pytest
import torch
from stub_batch import StubBatch, images
from tiny_gan import CONVOLUTIONS, assert_trains, build, composed, engine


@pytest.mark.parametrize("a, b, c", [(0.0, 1.0, 1.0), (-1.0, 1.0, 0.0), (0.2, 0.7, -0.4)])
def test_targets(a, b, c):
    """Eq. 2: D: 1/2 (D(x) - b)^2 + 1/2 (D(G(z)) - a)^2;  G: 1/2 (D(G(z)) - c)^2."""
    gan, batch = build("lsgan", loss={"name": "lsgan", "a": a, "b": b, "c": c}), StubBatch(images())
    d = gan.discriminator_loss(batch)["adversarial"]
    r, f = (gan.discriminator(x) for x in (batch.images, batch.shared["fake"]))
    torch.testing.assert_close(d, 0.5 * (r - b) ** 2 + 0.5 * (f - a) ** 2)
    g = gan.generator_loss(batch)["adversarial"]
    torch.testing.assert_close(g, 0.5 * (f - c) ** 2)
    assert torch.equal(batch.reports["sign_real"], (r > (a + b) / 2).float())
    assert_trains(engine("lsgan", loss={"name": "lsgan", "a": a, "b": b, "c": c}))


def test_the_defaults_are_the_first_of_the_papers_choices():
    gan = build("lsgan")
    assert (gan.loss.a, gan.loss.b, gan.loss.c) == (0, 1, 1)
    assert composed("gan=lsgan")["loss"] == {"name": "lsgan", "a": 0.0, "b": 1.0, "c": 1.0}


def test_fakes_far_on_the_right_side_are_pulled_back():
    """What the paper is about: the sigmoid loss leaves a fake with a large logit alone, least squares do not."""
    slopes = []
    for loss in ("lsgan", "nonsaturating"):
        logits = torch.full((4,), 20.0, requires_grad=True)
        build("lsgan", loss=loss).loss.generator(None, logits).sum().backward()
        slopes.append(float(logits.grad[0]))
    assert slopes == [pytest.approx(19.0), pytest.approx(0.0, abs=1e-6)]


def test_it_is_dcgan_with_another_loss():
    a, b = (build(name, CONVOLUTIONS) for name in ("lsgan", "dcgan"))
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    assert [type(p) for p in a.phases()] == [type(p) for p in b.phases()] and a.shares and b.shares
