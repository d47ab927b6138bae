"""gan=acgan (arXiv:1610.09585): D tells real from fake and the class, and is never told it."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from stub_batch import StubBatch, images
from tiny_gan import assert_trains, build, engine

from errors import UserError

LABELS = torch.tensor([0, 1, 2, 0])


def acgan(options=None, **changes):
    return build("acgan", {"norm_d": "none", "dropout": 0.0, **(options or {})}, 16, 1, 3, **changes)


@pytest.mark.parametrize("discriminator", ["dcgan", "resnet", "patch"])
def test_d_never_sees_labels(discriminator):
    options = {"discriminator": discriminator} | ({"patch_field": 16} if discriminator == "patch" else {})
    gan, x = acgan(options), images()
    results = [(gan.discriminator.features(x, y), gan.discriminator(x, y)) for y in (LABELS, LABELS.roll(1), None)]
    for features, logits in results[1:]:
        assert torch.equal(features, results[0][0]) and torch.equal(logits, results[0][1])
    scores = gan.discriminator.class_logits(results[0][0])
    assert scores.shape == (4, 3) and scores.std() > 0
    assert "labels" not in inspect.signature(gan.discriminator.class_logits).parameters


def test_the_terms_are_cross_entropies_on_reals_and_fakes_times_their_weights():
    gan, batch = acgan({"class_weight_d": 0.3, "class_weight_g": 2.0}), StubBatch(images(), LABELS)
    terms = gan.discriminator_loss(batch)
    assert set(terms) == {"adversarial", "class_real", "class_fake"}
    features = {"real": gan.discriminator.features(batch.images), "fake": gan.discriminator.features(batch.shared["fake"])}
    scores = {side: gan.discriminator.class_logits(f) for side, f in features.items()}
    for side in ("real", "fake"):
        expected = F.cross_entropy(scores[side], LABELS, reduction="none")
        torch.testing.assert_close(terms[f"class_{side}"], 0.3 * expected)
    r, f = (gan.discriminator.logits(features[side]) for side in ("real", "fake"))
    torch.testing.assert_close(terms["adversarial"], F.softplus(-r) + F.softplus(f))
    assert torch.equal(batch.reports["class_accuracy"], (scores["real"].argmax(1) == LABELS).float())
    terms = gan.generator_loss(batch)
    torch.testing.assert_close(terms["class"], 2.0 * F.cross_entropy(scores["fake"], LABELS, reduction="none"))
    torch.testing.assert_close(terms["adversarial"], F.softplus(-f))


def gradients(module):
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()])


def test_g_gets_the_gradient_of_the_class():
    """With the class term alone G moves; it is that of the cross-entropy of its fakes under the labels they were made for."""
    found = []
    for terms in (("class",), ("adversarial",), ("class", "adversarial")):
        gan, batch = acgan(), StubBatch(images(), LABELS)
        gan.discriminator_loss(batch)
        values = gan.generator_loss(batch)
        sum(values[name].mean() for name in terms).backward()
        found.append(gradients(gan.generator))
    assert found[0].any() and found[1].any()
    torch.testing.assert_close(found[2], found[0] + found[1])
    gan, batch = acgan(), StubBatch(images(), LABELS)
    fake = gan.generator(batch.draw("z", 4), LABELS)
    F.cross_entropy(gan.discriminator.class_logits(gan.discriminator.features(fake)), LABELS).backward()
    torch.testing.assert_close(found[0], gradients(gan.generator))


def test_weights_of_zero_leave_the_class_out():
    gan, batch = acgan({"class_weight_d": 0.0, "class_weight_g": 0.0}), StubBatch(images(), LABELS)
    for phase in (gan.discriminator_loss, gan.generator_loss):
        assert all(not term.any() for name, term in phase(batch).items() if name != "adversarial")


def test_the_image_depends_on_the_label():
    gan = acgan().eval()
    z = torch.randn(1, 4)
    assert (gan.sample(z, torch.tensor([0])) - gan.sample(z, torch.tensor([1]))).abs().max() > 0


def test_under_the_driver_with_micro_batches_and_other_losses():
    for loss, penalty in (("nonsaturating", "none"), ("hinge", "r1"), ("relativistic_average", "dragan")):
        means = assert_trains(engine("acgan", {"norm_d": "none"}, 16, 3, 3, loss=loss, penalty=penalty, micro_batch=2))
        assert 0 <= means["discriminator/class_accuracy"] <= 1 and means["generator/loss_class"] > 0


def test_the_class_is_learnt():
    """Classes of plain brightness: after some steps D tells them apart."""
    driver = engine("acgan", {"dropout": 0.0, "norm_d": "none", "width_d": 8}, 16, 1, 3, batch_size=12,
                    optim={"name": "adam", "lr": 2e-3})  # fmt: skip
    data = driver.source
    data.images[:] = (data.labels * 100 + 20).to(torch.uint8)[:, None, None, None]
    for _ in range(40):
        driver.pop_means()
        driver.step()
    assert driver.pop_means()["discriminator/class_accuracy"] > 0.9


@pytest.mark.parametrize("name", ["class_weight_d", "class_weight_g"])
def test_negative_weights_are_refused(name):
    with pytest.raises(UserError, match=rf"^gan.{name}=-0.5: must be at least 0$"):
        acgan({name: -0.5})
