"""Any model of the zoo with a few hundred weights, under the driver's engine, on random images or points."""

from __future__ import annotations

import copy
from functools import cache

import torch

import gans
from data import DataSource, Spec
from training import cli
from training.config import build_config
from training.engine import Engine
from training.processes import Processes

torch.set_num_threads(1)  # more would only wait for each other

CLASSICS = ("vanilla", "dcgan", "cgan", "acgan", "wgan", "wgan_gp", "lsgan")
CONVOLUTIONAL = CLASSICS[1:]
LABELLED = ("cgan", "acgan")
CONVOLUTIONS = {"z_dim": 4, "width_g": 2, "width_d": 2, "embedding_dim": 3}
TINY = {
    "vanilla": {"z_dim": 4, "width": 6, "depth": 2, "embedding_dim": 3},
    "r3gan": {"z_dim": 4, "width": 8, "cardinality": 4, "blocks": 1, "expansion": 1, "embedding_dim": 3},
    "wgan": {**CONVOLUTIONS, "boosted_steps": 2},
}


@cache
def composed(*words):
    """The whole config of choices such as "gan=dcgan", as plain values."""
    return cli.compose(cli.parse([*words, "dataset=digits", "recipe=null"]))


def config(name, options=None, **changes):
    """``gan=<name>`` from the configuration files, with tiny networks, ``options`` of the model and other ``changes``."""
    values = copy.deepcopy(composed(f"gan={name}"))
    values["gan"] |= {**TINY.get(name, CONVOLUTIONS), **(options or {})}
    values |= {"device": "cpu", "batch_size": 4, "total_kimg": 1.0, "schedule": {}, "channels_last": False, **changes}
    for group in ("loss", "penalty"):
        if isinstance(values[group], str):
            values[group] = {"name": values[group]}
    return build_config(values)[0]


def source(resolution=16, channels=1, classes=0, kind="images", n=24):
    """Random data; labels count through the classes."""
    rng = torch.Generator().manual_seed(1)
    shape = (n, channels, resolution, resolution)
    images = torch.randint(256, shape, generator=rng, dtype=torch.uint8)
    images = images if kind == "images" else torch.rand(shape, generator=rng) * 2 - 1
    labels = torch.arange(n) % classes if classes else torch.full((n,), -1)
    return DataSource(images, labels, Spec("toy", resolution, channels, classes, kind=kind))


def build(name, options=None, resolution=16, channels=1, classes=0, kind="images", **changes):
    """A fresh model, the same for the same arguments."""
    settings = config(name, options, **changes)
    torch.manual_seed(0)
    spec = Spec("toy", resolution, channels, classes, kind=kind)
    return gans.build(settings.gan, spec, settings.loss, settings.penalty)


def engine(name, options=None, resolution=16, channels=1, classes=0, kind="images", **changes):
    """The same under the engine; ``changes`` are options of the run."""
    gan = build(name, options, resolution, channels, classes, kind, **changes)
    data = source(resolution, channels, classes, kind)
    return Engine(gan, data, config(name, options, **changes), Processes("cpu"))


def conditional(name):
    """(classes of the data, options) with which the model is told labels."""
    return (3, {}) if name in (*LABELLED, "r3gan") else (3, {"conditioning": "projection"})


def assert_trains(driver, steps=1):
    """Some steps in which every network moves and every gradient is finite; what was logged of them."""
    before = {name: [p.detach().clone() for p in parameters] for name, parameters in driver.sets.items()}
    for _ in range(steps):
        driver.step()
    means = driver.pop_means()
    for name, parameters in driver.sets.items():
        assert any(not torch.equal(a, b) for a, b in zip(before[name], parameters)), name
        assert all(p.isfinite().all() for p in parameters), name
    for phase in driver.phases:
        assert means[f"{phase.name}/skipped"] == 0
    return means
