"""The wiring that the models of one G and one D share: feature matching, instance noise, patches, what D and G see."""

import pytest
import tiny_gan
import torch
import torch.nn.functional as F
from stub_batch import StubBatch, images
from tiny_gan import assert_trains, build, engine

import losses
from errors import UserError
from gans.base import Clock

LABELS = torch.tensor([0, 1, 2, 0])


def total(terms):
    return sum(term.mean() for term in terms.values())


def watch(monkeypatch, network, method):
    """Every first argument and result of a method from now on."""
    seen, original = [], getattr(network, method)

    def watched(first, *more):
        result = original(first, *more)
        seen.append((first.detach().clone(), result))
        return result

    monkeypatch.setattr(network, method, watched)
    return seen


# feature matching (arXiv:1606.03498, section 3.1) ----------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["squared", "l1"])
@pytest.mark.parametrize("discriminator", ["dcgan", "resnet"])
def test_feature_matching_is_the_distance_of_mean_features(distance, discriminator):
    options = {"norm_d": "none", "discriminator": discriminator, "feature_matching": 0.7, "feature_distance": distance}
    gan, batch = build("dcgan", options), StubBatch(images())
    gan.discriminator_loss(batch)
    terms = gan.generator_loss(batch)
    assert list(terms) == ["adversarial", "feature_matching"]
    features = [gan.discriminator.features(x).detach() for x in (batch.images, batch.shared["fake"])]
    difference = features[0].mean(0) - features[1].mean(0)
    expected = difference.square().sum() if distance == "squared" else difference.abs().sum()
    torch.testing.assert_close(terms["feature_matching"], 0.7 * expected)
    terms["feature_matching"].backward()
    assert any(p.grad.any() for p in gan.generator.parameters())


def test_feature_matching_alone_is_that_papers_objective():
    gan, batch = build("dcgan", {"feature_matching": 1.0, "adversarial_weight": 0.0}), StubBatch(images())
    gan.discriminator_loss(batch)
    assert list(gan.generator_loss(batch)) == ["feature_matching"]
    means = assert_trains(engine("dcgan", {"feature_matching": 1.0, "adversarial_weight": 0.0}))
    assert "generator/loss_adversarial" not in means and means["generator/loss_feature_matching"] > 0


def test_the_adversarial_weight_is_a_factor():
    terms = []
    for weight in (1.0, 0.25):
        gan, batch = build("dcgan", {"adversarial_weight": weight}), StubBatch(images())
        gan.discriminator_loss(batch)
        terms.append(gan.generator_loss(batch)["adversarial"])
    torch.testing.assert_close(terms[1], 0.25 * terms[0])


def test_feature_matching_couples_a_batch_and_says_so():
    assert "feature matching" in build("dcgan", {"feature_matching": 1.0}).batch_coupled()
    assert "feature matching" not in build("dcgan").batch_coupled()


# instance noise (arXiv:1610.04490) --------------------------------------------------------------------------------------------


def the_noise(batch, side):
    (name,) = [name for name in batch.draws if "noise" in name and side in name]
    return batch.draws[name]


@pytest.mark.parametrize("name, classes", [("dcgan", 0), ("cgan", 3), ("r3gan", 3)])
def test_instance_noise_is_on_all_that_d_sees(monkeypatch, name, classes):
    gan = build(name, {"instance_noise": 0.3}, 16, 1, classes, loss="relativistic", penalty="none")
    batch = StubBatch(images(), LABELS if classes else None)
    seen = watch(monkeypatch, gan.discriminator, "features")
    made = []
    gan.generator.register_forward_hook(lambda module, args, fake: made.append(fake.detach().clone()))
    gan.discriminator_loss(batch)
    gan.generator_loss(batch)
    fake = made[-1]
    assert len(seen) == 4  # real and fake in D's phase; fake and, for this loss, real in G's
    real_noise, fake_noise = the_noise(batch, "real"), the_noise(batch, "fake")
    assert not torch.equal(real_noise, fake_noise)
    assert 0.8 < real_noise.std() < 1.2 and real_noise.shape == batch.images.shape
    real = batch.images + 0.3 * real_noise
    for (x, _), y in zip(seen, (real, made[0] + 0.3 * fake_noise, fake + 0.3 * fake_noise, real), strict=True):
        torch.testing.assert_close(x, y)


def test_without_instance_noise_d_sees_the_images(monkeypatch):
    gan, batch = build("dcgan"), StubBatch(images())
    seen = watch(monkeypatch, gan.discriminator, "features")
    gan.discriminator_loss(batch)
    assert torch.equal(seen[0][0], batch.images) and [*batch.draws] == ["z"]


def test_instance_noise_on_a_schedule(monkeypatch):
    """From 0.5 to none in two steps."""
    schedule = {"instance_noise": {"kind": "linear", "final": 0.0, "kimg": 0.008}}
    driver = engine("dcgan", {"instance_noise": 0.5}, schedule=schedule)
    seen = watch(monkeypatch, driver.gan.discriminator, "features")
    deviations = []
    for _ in range(3):
        del seen[:]
        driver.step()
        deviations.append(float(seen[1][0].std()))  # of fakes, which are nearly black in a fresh network
    assert driver.values["instance_noise"] == 0
    assert deviations[0] > 0.45 and 0.2 < deviations[1] < 0.3 and deviations[2] < 0.05


def test_instance_noise_may_grow_from_nothing():
    driver = engine("dcgan", {}, schedule={"instance_noise": {"kind": "linear", "final": 1.0, "kimg": 0.004}})
    driver.step()
    assert driver.values["instance_noise"] == 1 and driver.gan.values["instance_noise"] == 1


def test_a_penalty_is_of_clean_images_behind_the_noise():
    gan = build("dcgan", {"instance_noise": 0.3, "norm_d": "none"}, loss="hinge", penalty="r1")
    batch = StubBatch(images())
    gan.discriminator_loss(batch)
    clean = batch.images.clone().requires_grad_()
    noisy = clean + 0.3 * the_noise(batch, "real")
    (gradient,) = torch.autograd.grad(gan.discriminator(noisy).sum(), clean)
    torch.testing.assert_close(batch.reports["r1"], gradient.square().sum((1, 2, 3)))


def test_the_penalty_between_reals_and_fakes_is_behind_the_noise_too():
    gan = build("dcgan", {"instance_noise": 0.3, "norm_d": "none"}, loss="wasserstein", penalty="wgan_gp")
    batch = StubBatch(images())
    gan.discriminator_loss(batch)
    fake, eps = batch.shared["fake"].detach(), batch.draws["mix"]
    x_hat = (eps * batch.images + (1 - eps) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(gan.discriminator(x_hat + 0.3 * the_noise(batch, "mix")).sum(), x_hat)
    torch.testing.assert_close(batch.reports["gp"], (gradient.flatten(1).norm(dim=1) - 1).square())


# patches (arXiv:1611.07004) ---------------------------------------------------------------------------------------------------

PATCH = {"discriminator": "patch", "patch_field": 16, "norm_d": "none"}


@pytest.mark.parametrize("field, resolution", [(1, 16), (16, 32), (34, 80), (70, 160), (142, 320), (286, 640)])
def test_the_receptive_field_is_measured_and_told(field, resolution):
    gan = build("dcgan", {**PATCH, "patch_field": field, "width_g": 1, "width_d": 1}, resolution)
    x = images(1, resolution).requires_grad_()
    logits = gan.discriminator(x)
    assert logits.ndim == 3
    middle = logits.shape[1] // 2
    (gradient,) = torch.autograd.grad(logits[0, middle, middle], x)
    rows = gradient.abs().sum((0, 1, 3)).nonzero().flatten()
    assert int(rows[-1] - rows[0] + 1) == field
    assert any(f"{field}x{field} pixels" in remark for remark in gan.remarks())
    batch = StubBatch(images(1, resolution))
    gan.discriminator_loss(batch)
    assert batch.reports["receptive_field"] == field


def test_the_paper_s_field_is_the_default_and_others_have_none():
    gan = build("dcgan", {"discriminator": "patch"}, 64)
    assert gan.discriminator.receptive_field == 70
    batch = StubBatch(images())
    build("dcgan").discriminator_loss(batch)
    assert "receptive_field" not in batch.reports
    assert engine("dcgan", PATCH).gan.remarks()


@pytest.mark.parametrize("loss", ["nonsaturating", "lsgan", "hinge"])
def test_patches_are_averaged_before_the_loss_or_judged_each(loss):
    d = {"nonsaturating": lambda r, f: F.softplus(-r) + F.softplus(f), "hinge": lambda r, f: F.relu(1 - r) + F.relu(1 + f),
         "lsgan": lambda r, f: 0.5 * (r - 1) ** 2 + 0.5 * f**2}[loss]  # fmt: skip
    g = {"nonsaturating": lambda f: F.softplus(-f), "hinge": lambda f: -f, "lsgan": lambda f: 0.5 * (f - 1) ** 2}[loss]
    values = []
    for how in ("averaged", "each"):
        gan, batch = build("dcgan", {**PATCH, "patch_loss": how}, loss=loss), StubBatch(images())
        with torch.no_grad():  # patches that differ enough for the order of mean and loss to matter
            for p in gan.discriminator.parameters():
                p.mul_(20 if p.ndim > 1 else 1)
        d_term, g_term = gan.discriminator_loss(batch)["adversarial"], gan.generator_loss(batch)["adversarial"]
        r, f = (gan.discriminator(x) for x in (batch.images, batch.shared["fake"]))
        assert r.shape == (4, 6, 6) and r.std() > 0.1
        if how == "averaged":
            torch.testing.assert_close(d_term, d(r.mean((1, 2)), f.mean((1, 2))))
            torch.testing.assert_close(g_term, g(f.mean((1, 2))))
        else:
            torch.testing.assert_close(d_term, d(r, f).mean((1, 2)))
            torch.testing.assert_close(g_term, g(f).mean((1, 2)))
        torch.testing.assert_close(batch.reports["logits_real"], r.mean((1, 2)).detach())
        values.append(d_term)
    assert (values[0] - values[1]).abs().max() > 1e-4


@pytest.mark.parametrize("how", ["averaged", "each"])
def test_penalties_differentiate_the_average_of_patches(how):
    gan, batch = build("dcgan", {**PATCH, "patch_loss": how}, loss="nonsaturating", penalty="r1_r2"), StubBatch(images())
    gan.discriminator_loss(batch)
    for name, x in (("r1", batch.images), ("r2", batch.shared["fake"])):
        leaf = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(gan.discriminator(leaf).mean((1, 2)).sum(), leaf)
        torch.testing.assert_close(batch.reports[name], gradient.square().sum((1, 2, 3)))


@pytest.mark.parametrize("penalty", [*losses.PENALTIES])
@pytest.mark.parametrize("how", ["averaged", "each"])
def test_patches_train_under_every_penalty(how, penalty):
    for loss in ("relativistic", "relativistic_average"):
        assert_trains(engine("dcgan", {**PATCH, "patch_loss": how, "feature_matching": 0.1}, loss=loss, penalty=penalty))


@pytest.mark.parametrize("conditioning", ["concat", "projection"])
def test_conditional_patches(conditioning):
    assert_trains(engine("cgan", {**PATCH, "patch_loss": "each", "conditioning": conditioning}, 16, 3, 3, penalty="r1"))
    assert_trains(engine("acgan", {**PATCH, "patch_loss": "each"}, 16, 3, 3))


# D's and G's batches ----------------------------------------------------------------------------------------------------------


def test_a_lazy_penalty_of_a_classic():
    """Its phase draws reals and fakes of its own; the value is times its interval."""
    driver = engine("dcgan", {"norm_d": "none"}, penalty={"name": "r1", "gamma": 2.0, "interval": 3})
    runs = []
    for _ in range(4):
        driver.step()
        means = driver.pop_means()
        runs.append("penalty/loss_r1" in means)
        assert "discriminator/loss_r1" not in means
    assert runs == [True, False, False, True]
    gan, batch = driver.gan, StubBatch(images())
    phase = gan.phases()[-1]
    assert (phase.name, phase.lazy, phase.interval) == ("penalty", True, 3)
    torch.testing.assert_close(phase.loss(batch)["r1"].detach(), 3 * 0.5 * 2.0 * batch.reports["r1"])


@pytest.mark.parametrize("name", tiny_gan.CLASSICS)
def test_fakes_are_cut_from_g_in_ds_phase(name):
    classes, options = tiny_gan.conditional(name)
    gan, batch = build(name, options, 16, 1, classes), StubBatch(images(), LABELS)
    total(gan.discriminator_loss(batch)).backward()
    assert all(p.grad is None for p in gan.generator.parameters())
    assert all(p.grad is not None for p in gan.discriminator.parameters())
    gan.zero_grad(set_to_none=True)
    total(gan.generator_loss(batch)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in gan.generator.parameters())


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_one_sided_label_smoothing(smoothing):
    """The target of reals is lowered, that of fakes is not, and neither is G's (arXiv:1606.03498, section 3.4)."""
    gan = build("dcgan", {"norm_d": "none"}, loss={"name": "nonsaturating", "label_smoothing": smoothing})
    batch = StubBatch(images())
    term = gan.discriminator_loss(batch)["adversarial"]
    r, f = (gan.discriminator(x) for x in (batch.images, batch.shared["fake"]))
    target = torch.full_like(r, 1 - smoothing)
    expected = F.binary_cross_entropy_with_logits(r, target, reduction="none")
    expected = expected + F.binary_cross_entropy_with_logits(f, torch.zeros_like(f), reduction="none")
    torch.testing.assert_close(term, expected)
    torch.testing.assert_close(gan.generator_loss(batch)["adversarial"], F.softplus(-f))


# penalties of their own phase, sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, steps", [("wgan_gp", 5), ("wgan_gp", 3), ("dcgan", 1), ("wgan", 2)])
@pytest.mark.parametrize("interval", [1, 2, 4])
def test_the_weight_of_a_penalty_does_not_depend_on_its_interval(name, steps, interval):
    """Over many steps, what the penalty adds to D's losses for each update of D by the adversarial term."""
    penalty = {"name": "wgan_gp", "interval": interval}
    gan = build(name, {"discriminator_steps": steps, "weight_clip": None, "norm_d": "none"}, penalty=penalty)
    updates = weight = 0
    for step in range(8):
        for phase in gan.phases():
            if step % phase.interval == 0 and phase.trains == "discriminator":
                repeats = phase.repeats(Clock(step)) if callable(phase.repeats) else phase.repeats
                lazy = phase.name == "penalty"
                updates += 0 if lazy else repeats
                weight += repeats * (interval if lazy else interval == 1)
    assert weight == updates


def test_a_lazy_penalty_on_reals_runs_no_generator():
    driver = engine("dcgan", {"norm_d": "none"}, penalty={"name": "r1", "interval": 2})
    runs = []
    driver.gan.generator.register_forward_hook(lambda *_: runs.append(1))
    driver.gradients(driver.phases[-1])
    assert driver.phases[-1].name == "penalty" and runs == []


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UserError, match=r"batch_size=4: phase generator would draw 1e\+06 times that at once, and the data has"):
        engine("dcgan", {"generator_batch_scale": 1e6})


def test_r3gan_judges_patches():
    options = {"discriminator": "patch", "patch_field": 16, "patch_loss": "each", "patch_width": 4}
    driver = engine("r3gan", options, 16, 1, 3)
    assert driver.gan.remarks() == ["discriminator of patches: each logit sees 16x16 pixels (each)"]
    assert_trains(driver)
    with pytest.raises(UserError, match="gan.patch_width=4: belongs to gan.discriminator=patch"):
        build("r3gan", {"patch_width": 4}, 16, 1, 3)
