"""gan=wgan (arXiv:1701.07875): a clipped critic that is trained more often than G."""

from dataclasses import replace

import pytest
import tiny_gan
import torch
from stub_batch import StubBatch, images
from tiny_gan import build, engine
from torch import nn

from errors import UserError
from gans.base import Clock


def largest(network):
    return max(float(p.detach().abs().max()) for p in network.parameters())


def test_a_hundred_critic_steps_at_first_and_now_and_then():
    """100 in each of the first 25 steps of G and in every 500th, else 5."""
    options = tiny_gan.composed("gan=wgan")["gan"]
    gan = build("wgan", {"boosted_steps": options["boosted_steps"]})
    critic, generator = gan.phases()
    found = {step: critic.repeats(Clock(step, 64 * step)) for step in (*range(30), 499, 500, 501, 999, 1000, 1001, 1500, 12345)}
    assert found == {step: 100 if step < 25 or step in (500, 1000, 1500) else 5 for step in found}
    assert generator.repeats == 1 and (critic.trains, generator.trains) == ("discriminator", "generator")


def test_weights_are_within_the_box_at_the_beginning_of_every_critic_step():
    """... the first one too, and at the end of every step; and clipping is what keeps them there."""
    options = {"boosted_steps": 4, "boosted_for": 2, "discriminator_steps": 2}
    driver = engine("wgan", options, optim={"name": "rmsprop", "lr": 1e-3})
    critic, generator = driver.phases
    seen, unclipped, discriminator = [], [], driver.gan.discriminator

    def watched(phase, step):
        def loss(batch):
            seen.append((step(), largest(discriminator)))
            return phase.loss(batch)

        return loss

    def after_update():
        unclipped.append(largest(discriminator))
        critic.after_update()

    driver.phases = [replace(critic, loss=watched(critic, lambda: driver.clock.step), after_update=after_update),
                     replace(generator, loss=watched(generator, lambda: None))]  # fmt: skip
    for _ in range(4):
        driver.step()
    assert [sum(step == k for step, _ in seen) for k in range(4)] == [4, 4, 2, 2]
    bound = float(torch.tensor(0.01))
    assert all(value <= bound for _, value in seen) and max(unclipped) > 0.0105
    assert largest(discriminator) <= bound < largest(driver.gan.generator)


def test_every_parameter_of_the_critic_is_clipped_and_no_statistic():
    gan = build("wgan", {})
    assert any(isinstance(m, nn.BatchNorm2d) for m in gan.discriminator.modules())
    assert largest(gan.discriminator) <= float(torch.tensor(0.01))
    assert all((b == 1).all() for name, b in gan.discriminator.named_buffers() if "running_var" in name)


def test_the_losses_are_mean_logits():
    gan, batch = build("wgan", {"norm_d": "none"}), StubBatch(images())
    with torch.no_grad():
        for p in gan.discriminator.parameters():
            p.mul_(30)
    d = gan.discriminator_loss(batch)["adversarial"]
    r, f = (gan.discriminator(x) for x in (batch.images, gan.generator(batch.draws["z"])))
    torch.testing.assert_close(d, f - r)
    torch.testing.assert_close(gan.generator_loss(batch)["adversarial"], -f)
    assert not any(isinstance(m, nn.Sigmoid) for m in gan.modules())


def test_each_critic_step_has_reals_and_latents_of_its_own():
    driver = engine("wgan", {"boosted_steps": 3})
    critic, generator = driver.phases
    seen = []
    driver.phases = [replace(p, loss=lambda b, p=p: (seen.append((p.name, b.images.clone(), b.draw("z", 4))), p.loss(b))[1])
                     for p in (critic, generator)]  # fmt: skip
    driver.step()
    assert [name for name, _, _ in seen] == ["discriminator"] * 3 + ["generator"]
    for i, (_, x, z) in enumerate(seen):
        assert not any(torch.equal(z, other) for _, _, other in seen[:i])
        assert not any(torch.equal(x, other) for name, other, _ in seen[:i] if name == "discriminator")


def test_the_optimizer_of_its_configuration():
    config = tiny_gan.config("wgan")
    assert config.optim["name"] == "rmsprop" and config.optim["lr"] == 5e-5 and config.optim["momentum"] == 0
    optimizers = {type(o.optimizer) for o in engine("wgan").optimizers.values()}
    assert optimizers == {torch.optim.RMSprop}


REFUSED = [("boosted_steps", 0), ("boosted_for", -1), ("boosted_every", 0), ("discriminator_steps", 0), ("weight_clip", 0.0),
           ("weight_clip", -0.01)]  # fmt: skip


@pytest.mark.parametrize("option, value", REFUSED)
def test_refused_options(option, value):
    with pytest.raises(UserError, match=rf"^gan.{option}={value}: must be"):
        build("wgan", {option: value})


def test_any_model_can_be_clipped():
    for name in ("dcgan", "r3gan", "vanilla"):
        driver = engine(name, {"weight_clip": 0.005}, 8, 1, 3, loss="wasserstein", penalty="none")
        bound = float(torch.tensor(0.005))
        assert largest(driver.gan.discriminator) <= bound
        driver.step()
        assert largest(driver.gan.discriminator) <= bound
