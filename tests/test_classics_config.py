"""configs/gan/<classic>.yaml: the papers' numbers, and nothing that the model does not have."""

import pytest
import yaml
from test_recipes import config_of
from tiny_gan import CLASSICS, CONVOLUTIONAL, build

from gans import GANS
from training import cli

ADAM = {"name": "adam", "eps": 1e-8, "weight_decay": 0.0}
RMSPROP = {"name": "rmsprop", "lr": 5e-5, "alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.0}
PAPERS = {
    # loss, penalty, optimizer, batch, options
    "vanilla": ("nonsaturating", "none", {**ADAM, "lr": 2e-4, "beta1": 0.5, "beta2": 0.999}, 100, {}),
    # DCGAN, section 4: batches of 128, z in 100 dimensions, Adam with 2e-4 and 0.5
    "dcgan": ("nonsaturating", "none", {**ADAM, "lr": 2e-4, "beta1": 0.5, "beta2": 0.999}, 128, {"z_dim": 100}),
    "cgan": ("nonsaturating", "none", {**ADAM, "lr": 2e-4, "beta1": 0.5, "beta2": 0.999}, 128, {"conditioning": "concat"}),
    # ACGAN, appendix A: batches of 100, Adam with 2e-4, 0.5 and 0.999, dropout 0.5 in D
    "acgan": ("nonsaturating", "none", {**ADAM, "lr": 2e-4, "beta1": 0.5, "beta2": 0.999}, 100,
              {"dropout": 0.5, "class_weight_d": 1.0, "class_weight_g": 1.0}),
    # WGAN, algorithm 1 and its published code
    "wgan": ("wasserstein", "none", RMSPROP, 64,
             {"weight_clip": 0.01, "discriminator_steps": 5, "boosted_steps": 100, "boosted_for": 25, "boosted_every": 500}),
    # WGAN-GP, algorithm 1
    "wgan_gp": ("wasserstein", "wgan_gp", {**ADAM, "lr": 1e-4, "beta1": 0.0, "beta2": 0.9}, 64,
                {"discriminator_steps": 5, "norm_d": "layer", "z_dim": 128}),
    "lsgan": ("lsgan", "none", {**ADAM, "lr": 2e-4, "beta1": 0.5, "beta2": 0.999}, 64, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSICS)
def test_values_of_the_papers(name):
    loss, penalty, optim, batch, options = PAPERS[name]
    config = config_of(f"gan={name}", "recipe=null")
    assert (config.loss["name"], config.penalty["name"], config.batch_size) == (loss, penalty, batch)
    assert config.optim == optim
    for option, value in options.items():
        assert getattr(config.gan, option) == value, option
    assert (config.precision, config.clip_grad_norm, config.augment["name"]) == ("fp32", None, "none")
    if penalty == "wgan_gp":
        assert config.penalty == {"name": penalty, "gp_lambda": 10.0, "center": 1.0, "one_sided": False, "interval": 1}


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_networks_of_the_papers(name):
    """DCGAN's, plain: all that may be switched is off, but what the model is about."""
    gan = config_of(f"gan={name}", "recipe=null").gan
    assert (gan.generator, gan.discriminator, gan.width_g, gan.width_d, gan.init) == ("dcgan", "dcgan", 64, 64, "paper")
    own = (gan.upsample, gan.downsample, gan.shortcut, gan.norm_g)
    assert own == (None, None, None, None) and gan.norm_d == ("layer" if name == "wgan_gp" else None)
    model = build(name, {}, 32, 3, 3)
    kinds = {type(layer).__name__ for layer in model.generator.modules()}
    assert {"ConvTranspose2d", "BatchNorm2d", "ReLU"} <= kinds and not kinds & {"Upsample", "PixelShuffle", "Conv2d"}
    kinds = {type(layer).__name__ for layer in model.discriminator.modules()}
    assert {"Conv2d", "GroupNorm" if name == "wgan_gp" else "BatchNorm2d", "LeakyReLU"} <= kinds and "AvgPool2d" not in kinds
    assert not (gan.spectral_norm_g or gan.spectral_norm_d or gan.attention_g or gan.attention_d or gan.minibatch_stddev)
    assert (gan.survival, gan.instance_noise, gan.feature_matching, gan.adversarial_weight) == (1.0, 0.0, 0.0, 1.0)
    assert gan.dropout == (0.5 if name == "acgan" else 0.0)
    assert (gan.weight_clip is None) == (name != "wgan") and gan.generator_batch_scale == 1.0
    assert gan.discriminator_steps == (5 if name in ("wgan", "wgan_gp") else 1)


@pytest.mark.parametrize("name", CLASSICS)
def test_a_configuration_and_the_class_say_the_same(name):
    """What the file says of the model is the class's default too, so that it is the paper's from Python as well."""
    said = yaml.safe_load((cli.CONFIGS / "gan" / f"{name}.yaml").read_text())["gan"]
    options = GANS[name].Options()
    differing = {option for option, value in said.items() if getattr(options, option) != value}
    assert differing <= {"dropout", "z_dim"}


def test_the_relativistic_objective_on_dcgan():
    """The command of R3GAN's objective on DCGAN's networks."""
    config = config_of("gan=dcgan", "loss=relativistic", "penalty=r1_r2", "recipe=null")
    assert (config.gan.name, config.penalty["name"]) == ("dcgan", "r1_r2")
    assert config.loss == {"name": "relativistic", "form": "softplus"}
