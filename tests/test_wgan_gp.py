"""gan=wgan_gp (arXiv:1704.00028): the penalised critic, and the paper's residual networks with their recipe."""

from dataclasses import replace

import pytest
import tiny_gan
import torch
from stub_batch import StubBatch, images
from test_recipes import config_of, network_of
from tiny_gan import build, engine
from torch import nn


@pytest.mark.parametrize("networks", ["dcgan", "resnet"])
def test_the_loss_is_that_of_algorithm_1(networks):
    """D(x~) - D(x) + 10 (||grad D(x^)|| - 1)^2 at x^ = e x + (1 - e) x~, e ~ U[0, 1) for each pair."""
    gan, batch = build("wgan_gp", {"generator": networks, "discriminator": networks}, channels=3), StubBatch(images(channels=3))
    terms = gan.discriminator_loss(batch)
    x, z, e = batch.images, batch.draws["z"], batch.draws["mix"]
    assert e.shape == (4, 1, 1, 1) and 0 <= e.min() and e.max() < 1
    with torch.no_grad():
        fake = gan.generator(z)
    x_hat = (e * x + (1 - e) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(gan.discriminator(x_hat).sum(), x_hat, create_graph=True)
    norm = gradient.square().sum((1, 2, 3)).sqrt()
    expected = gan.discriminator(fake) - gan.discriminator(x) + 10 * (norm - 1) ** 2
    torch.testing.assert_close(sum(terms.values()), expected)
    (found,) = torch.autograd.grad(sum(terms.values()).mean(), gan.discriminator.head.weight)
    (wanted,) = torch.autograd.grad(expected.mean(), gan.discriminator.head.weight)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gan.generator_loss(batch)["adversarial"], -gan.discriminator(gan.generator(z)))


def test_the_penalty_has_two_sides():
    """A critic that is too flat is punished as one that is too steep."""
    values = []
    for scale in (0.0, 1e6):
        gan, batch = build("wgan_gp", {"norm_d": "none"}), StubBatch(images())
        with torch.no_grad():
            gan.discriminator.head.weight.mul_(scale)
        values.append(gan.discriminator_loss(batch)["gp"])
    torch.testing.assert_close(values[0], torch.full((4,), 10.0))
    assert values[1].min() > 100


def test_the_penalty_is_of_each_critic_step_with_a_draw_of_its_own():
    driver = engine("wgan_gp", {"discriminator_steps": 5})
    critic, generator = driver.phases
    draws = []

    def loss(batch):
        draws.append(batch.draw("mix", (1, 1, 1), "uniform"))
        return critic.loss(batch)

    driver.phases = [replace(critic, loss=loss), generator]
    driver.step()
    assert len(draws) == 5 and len({tuple(d.flatten().tolist()) for d in draws}) == 5


@pytest.mark.parametrize("networks", ["dcgan", "resnet"])
def test_no_batchnorm_in_the_critic(networks):
    gan = build("wgan_gp", {"generator": networks, "discriminator": networks})
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in gan.discriminator.modules())
    assert any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in gan.generator.modules())
    assert any(isinstance(m, nn.GroupNorm) and m.num_groups == 1 for m in gan.discriminator.modules())
    assert gan.options.weight_clip is None


def test_a_samples_slope_does_not_depend_on_its_batch():
    gan, x = build("wgan_gp"), images(8)
    whole = gan.discriminator(x)
    torch.testing.assert_close(whole[:3], gan.discriminator(x[:3]))


def test_adam_of_its_configuration():
    config = tiny_gan.config("wgan_gp")
    assert config.optim == {"name": "adam", "lr": 1e-4, "beta1": 0.0, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.0}
    for optimizer in engine("wgan_gp").optimizers.values():
        assert optimizer.optimizer.param_groups[0]["betas"] == (0.0, 0.9)
    assert config.penalty == {"name": "wgan_gp", "gp_lambda": 10.0, "center": 1.0, "one_sided": False, "interval": 1}
    assert config.gan.discriminator_steps == 5


# the residual networks of the appendix ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe():
    return config_of("gan=wgan_gp", "dataset=cifar10")


def test_the_recipe_of_the_residual_networks(recipe):
    gan = recipe.gan
    assert (gan.generator, gan.discriminator, gan.width_g, gan.width_d, gan.z_dim) == ("resnet", "resnet", 128, 128, 128)
    assert (gan.upsample, gan.downsample, gan.norm_g, gan.norm_d) == (None, None, None, "none")  # the networks' own: below
    assert (gan.discriminator_steps, gan.generator_batch_scale, recipe.batch_size) == (5, 2.0, 64)
    assert (recipe.optim["lr"], recipe.optim["beta1"], recipe.optim["beta2"]) == (2e-4, 0.0, 0.9)
    schedule = recipe.schedule["lr"]
    assert (schedule.kind, schedule.final, schedule.kimg, schedule.warmup_kimg, schedule.hold_kimg) == ("linear", 0.0, None, 0, 0)
    assert recipe.total_kimg == recipe.schedule_kimg == 100_000 * 64 / 1000  # G's steps times D's batch
    assert recipe.penalty["name"] == "wgan_gp" and recipe.loss["name"] == "wasserstein"


def test_the_recipes_networks_have_the_published_size(recipe):
    """Four blocks in D, two of which halve the map, and three in G, of 128 channels; counted by hand from the appendix."""
    gan = network_of(recipe, 32, 0)
    width, conv, one = 128, 9 * 128 * 128, 128 * 128
    up = conv + (conv + width) + (one + width) + 2 * 2 * width  # two convolutions (a bias is nothing before a norm), 1x1, norms
    g = 128 * width * 16 + width * 16 + 3 * up + 2 * width + 9 * width * 3 + 3
    first = (9 * 3 * width + width) + (conv + width) + (3 * width + width)
    half = 2 * (conv + width) + one + width
    d = first + half + 2 * 2 * (conv + width) + width + 1
    assert [sum(p.numel() for p in network.parameters()) for network in (gan.generator, gan.discriminator)] == [g, d]


def test_lr_falls_linearly_to_nothing_and_gs_batch_is_doubled():
    options = {"generator": "resnet", "discriminator": "resnet", "generator_batch_scale": 2.0, "norm_d": "none"}
    driver = engine("wgan_gp", options, schedule={"lr": {"kind": "linear", "final": 0.0}}, total_kimg=0.016, schedule_kimg=0.016,
                    optim={"name": "adam", "lr": 2e-4, "beta1": 0.0, "beta2": 0.9})  # fmt: skip
    sizes, lrs, phases = [], [], list(driver.phases)
    driver.phases = [replace(p, loss=lambda b, p=p: (sizes.append((p.name, len(b))), p.loss(b))[1]) for p in phases]
    for _ in range(5):
        lrs.append({o.optimizer.param_groups[0]["lr"] for o in driver.optimizers.values()})
        before = [p.detach().clone() for p in driver.gan.generator.parameters()]
        driver.step()
    assert [lr for (lr,) in lrs] == pytest.approx([2e-4, 1.5e-4, 1e-4, 0.5e-4, 0.0])
    assert all(torch.equal(a, b) for a, b in zip(driver.gan.generator.parameters(), before))
    assert sizes == ([("discriminator", 4)] * 5 + [("generator", 8)]) * 5
