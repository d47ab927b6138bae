"""The recipes: every number of the published ones, and who wins over whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

import gans
from data import Spec
from gans.base import Clock
from training import cli
from training.config import build_config
from training.schedules import Schedules

GOLDEN = Path(__file__).parent / "golden" / "r3gan_schedules.safetensors"

# widths and cardinalities from 4x4 up, classes, batch, gamma, EMA half-life, augmentation, schedule's length, bf16 stages of D
PUBLISHED = {
    "cifar10": ([768] * 4, [96] * 4, 10, 512, (0.05, 0.005), 5_000, 0.55, 20_000, 3),
    "ffhq64": ([768] * 4 + [384], [96] * 4 + [48], 0, 256, (2, 0.2), 500, 0.3, 20_000, 4),
    "ffhq256": ([768] * 4 + [384, 192, 96], [96] * 4 + [48, 24, 12], 0, 256, (150, 15), 500, 0.3, 20_000, 4),
    "imagenet32": ([1536] * 4, [96] * 4, 1000, 4096, (0.5, 0.05), 50_000, 0.5, 200_000, 3),
    "imagenet64": ([1536] * 5, [96] * 5, 1000, 4096, (1, 0.1), 50_000, 0.4, 200_000, 4),
}


def config_of(*words):
    arguments = cli.parse(words)
    config, left_out = build_config(cli.compose(arguments), arguments.explicit, arguments.chosen)
    assert left_out == []
    return config


def network_of(config, resolution, classes, channels=3):
    """The networks without their weights."""
    with torch.device("meta"):
        return gans.build(config.gan, Spec(config.dataset.name, resolution, channels, classes), config.loss, config.penalty)


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_published_recipe_of_r3gan(dataset):
    widths, cardinalities, classes, batch, gamma, half_life, augment, kimg, low_d = PUBLISHED[dataset]
    config = config_of("gan=r3gan", f"dataset={dataset}")
    assert (config.gan.name, config.dataset.name, config.dataset.xflip) == ("r3gan", dataset, True)
    assert (config.loss["name"], config.penalty["name"], config.penalty["interval"]) == ("relativistic", "r1_r2", 1)
    assert (config.gan.blocks, config.gan.expansion, config.gan.z_dim, config.gan.embedding_dim) == (2, 2, 64, 64)
    assert (config.batch_size, config.total_kimg, config.schedule_kimg) == (batch, kimg, kimg)
    assert config.optim == {"name": "adam", "lr": 2e-4, "beta1": 0.0, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.0}
    assert (config.penalty["gamma"], config.ema_half_life, config.augment_strength) == (gamma[0], 0, 0)
    finals = {name: schedule.final for name, schedule in config.schedule.items()}
    assert finals == {"lr": 5e-5, "beta2": 0.99, "gamma": gamma[1], "ema_half_life": half_life, "augment_strength": augment}
    for schedule in config.schedule.values():
        assert (schedule.kind, schedule.kimg, schedule.warmup_kimg, schedule.hold_kimg) == ("cosine", None, 0, 0)
    assert (config.precision, config.gan.low_precision_stages_g, config.gan.low_precision_stages_d) == ("bf16", 3, low_d)
    assert (config.gan.conditional, config.clip_grad_norm) == (bool(classes), None)
    half = {"brightness": 0.5, "contrast": 0.5, "lumaflip": 0.5, "hue": 0.5, "saturation": 0.5, "cutout": 1.0, "rotate90": 1.0}
    assert config.augment["name"] == "ada" and half.items() <= config.augment.items() and not config.augment["adaptive"]
    for every in (config.sample.every_kimg, config.eval.every_kimg, config.checkpoint.every_kimg):
        assert 100 <= kimg / every <= 200  # often enough to lose little, seldom enough to cost little
    assert batch / 1000 < config.log.every_kimg <= config.checkpoint.every_kimg / 10

    gan = network_of(config, 4 * 2 ** (len(widths) - 1), classes)
    assert [stage.blocks[0].project.weight.shape[0] for stage in gan.generator.stages] == widths
    assert [stage.blocks[0].project.weight.shape[0] for stage in gan.discriminator.stages] == widths[::-1]
    assert [stage.blocks[0].mix.groups for stage in gan.generator.stages] == cardinalities
    assert gan.conditional == bool(classes)
    gan.set_precision(torch.bfloat16)
    assert [stage.dtype is not None for stage in gan.generator.stages] == [False] * (len(widths) - 3) + [True] * 3
    assert [stage.dtype is not None for stage in gan.discriminator.stages] == [True] * low_d + [False] * (len(widths) - low_d)


def test_networks_of_the_cifar10_recipe_have_the_published_size():
    gan = network_of(config_of("dataset=cifar10"), 32, 10)
    count = [sum(p.numel() for p in network.parameters()) for network in (gan.generator, gan.discriminator)]
    assert count == [20_781_952, 21_280_512]


def test_schedules_of_the_cifar10_recipe_equal_golden_numbers():
    """At eleven points from 0 to 30,000 kimg, from an independent public implementation."""
    golden = load_file(GOLDEN)
    with safe_open(GOLDEN, "pt") as file:
        assert json.loads(file.metadata()["config"])["preset"] == "CIFAR10"
    config = config_of("gan=r3gan", "dataset=cifar10")
    gan = network_of(config, 32, 10)
    quantities = {"lr": config.optim["lr"], "beta2": config.optim["beta2"], "ema_half_life": config.ema_half_life,
                  "augment_strength": config.augment_strength, **gan.schedules()}  # fmt: skip
    schedules = Schedules(quantities, config.schedule, config.schedule_kimg)
    assert len(golden["in.nimg"]) == 11
    names = {"lr": "lr", "beta2": "beta2", "gamma": "gamma", "ema_half_life": "ema_nimg", "augment_strength": "aug_p"}
    for name, theirs in names.items():
        values = [schedules.at(Clock(0, images))[name] for images in golden["in.nimg"].tolist()]
        ours = torch.tensor(values, dtype=torch.float64) * (1000 if theirs == "ema_nimg" else 1)  # kimg or images
        expected = golden[f"out.{theirs}"]
        assert (ours - expected).abs().max() <= 1e-12 * expected.abs().max(), name


def test_every_recipe_fits_its_pair():
    """No recipe without a model and a data set of its name, none that says something which its own choices do not have."""
    choices = cli.groups()
    for name in choices["recipe"]:
        gan, _, dataset = name.partition("-")
        assert gan in choices["gan"] and dataset in choices["dataset"]
        config = config_of(f"gan={gan}", f"dataset={dataset}")
        assert (config.gan.name, config.dataset.name) == (gan, dataset)


def test_the_command_line_wins():
    words = [
        "batch_size=64", "optim.lr=0.1", "penalty.gamma=3", "schedule.gamma.final=2", "schedule.lr.kind=linear", "gan.width=96",
        "precision=fp32", "dataset.xflip=false", "total_kimg=5", "schedule.beta2=null", "loss=hinge", "augment.cutout=0",
    ]  # fmt: skip
    for order in (["dataset=cifar10", *words], [*words, "dataset=cifar10"]):
        config = config_of(*order)
        assert (config.batch_size, config.optim["lr"], config.penalty["gamma"], config.gan.width) == (64, 0.1, 3.0, 96)
        assert (config.schedule["gamma"].final, config.schedule["lr"].kind, config.schedule["lr"].final) == (2.0, "linear", 5e-5)
        assert (config.precision, config.dataset.xflip, config.total_kimg, config.loss["name"]) == ("fp32", False, 5.0, "hinge")
        assert (config.augment["cutout"], config.augment["hue"]) == (0.0, 0.5)
        assert "beta2" not in config.schedule and config.schedule["augment_strength"].final == 0.55  # the rest stays


def test_recipes_win_over_models_and_can_be_chosen():
    digits = yaml.safe_load((cli.CONFIGS / "recipe" / "r3gan-digits.yaml").read_text())
    assert config_of("gan=r3gan", "dataset=digits").batch_size == digits["batch_size"] != 256
    assert config_of("gan=r3gan", "dataset=zip").batch_size == 256  # no recipe: the model's own values
    config = config_of("dataset=zip", "recipe=r3gan-cifar10")
    assert config.dataset.name == "zip" and config.batch_size == 512 and config.dataset.xflip
    assert config_of("dataset=zip", "recipe=r3gan-cifar10", "batch_size=8").batch_size == 8
    config = config_of("dataset=cifar10", "recipe=null")
    assert config.batch_size == 256 and "augment_strength" not in config.schedule


def test_the_default_run_is_r3gan_on_digits():
    config = config_of()
    assert (config.gan.name, config.dataset.name, config.device, config.precision) == ("r3gan", "digits", "auto", "fp32")
    assert config == config_of("gan=r3gan", "dataset=digits", "recipe=r3gan-digits")
