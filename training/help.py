"""What ``train.py --help`` and ``--cfg job`` print: all options with the values of the choices on the command line."""

from __future__ import annotations

import inspect
import textwrap

import yaml

import gans
from data import DatasetOptions
from data.augment import AUGMENTS
from losses import LOSSES, PENALTIES
from training.cli import Arguments, compose, groups
from training.config import (
    CheckpointOptions,
    Config,
    EvalOptions,
    LogOptions,
    SampleOptions,
    build_config,
    plain,
)
from training.optimizers import OPTIMIZERS
from training.schedules import ScheduleOptions

HELP = """Train a GAN.

  python train.py                                        a first run: minutes on a CPU
  python train.py gan=r3gan dataset=cifar10              the recipe of that pair, if configs/recipe/ has one
  python train.py optim.lr=1e-4 batch_size=32            other values for some options
  python train.py resume=runs/r3gan-digits-0             go on with a run
  python train.py -m seed=0,1,2                          a run for each value (several lists: each combination)

  -h, --help        this text; after choices (dataset=cifar10 --help) with their values
  -c, --cfg job     print the config of the run and leave
  -m, --multirun    sweep over values with commas

Groups and their choices
{groups}

Options and the values they would have (change one by its full name: optim.lr=1e-4)
{config}
What they mean
{meanings}

A recipe is what configs/recipe/<gan>-<dataset>.yaml says; recipe=<name> takes another one, recipe=null none."""


def config_text(arguments: Arguments) -> str:
    """The whole config of a run as YAML, as its config.yaml will hold it; UserError if something is wrong with it."""
    config, _ = build_config(compose(arguments), arguments.explicit, arguments.chosen)
    values = {**plain(config), "run_dir": config.run_dir, "resume": config.resume}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def help_text(arguments: Arguments) -> str:
    """The help of train.py for the choices in ``arguments``."""
    config, _ = build_config(compose(arguments), arguments.explicit, arguments.chosen)
    lazily = "; interval: every how many steps, k > 1 in a phase of its own, times k" if "interval" in config.penalty else ""
    documented = {
        "of a run": Config,
        f"gan ({config.gan.name})": gans.GANS[config.gan.name].Options,
        "dataset": DatasetOptions,
        f"loss ({config.loss['name']})": LOSSES[config.loss["name"]],
        f"penalty ({config.penalty['name']}){lazily}": PENALTIES[config.penalty["name"]],
        f"augment ({config.augment['name']})": AUGMENTS[config.augment["name"]],
        f"optim ({config.optim['name']}); optim.<generator|discriminator>.lr and so on for one set of parameters":
            OPTIMIZERS[config.optim["name"]],
        "schedule.<quantity>, for lr, beta2, gamma, batch_size and others that are numbers": ScheduleOptions,
        "sample": SampleOptions,
        "eval": EvalOptions,
        "checkpoint": CheckpointOptions,
        "log": LogOptions,
    }  # fmt: skip
    meanings = []
    for title, schema in documented.items():
        meanings += [f"  {title}", *(f"    {line}".rstrip() for line in _documentation(schema))]
    choices = [
        textwrap.fill(", ".join(names), 120, initial_indent=f"  {name:<8} ", subsequent_indent=" " * 11, break_on_hyphens=False)
        for name, names in groups().items()
    ]
    text = "".join(f"  {line}\n" for line in config_text(arguments).splitlines())
    return HELP.format(groups="\n".join(choices), config=text, meanings="\n".join(meanings))


def _documentation(schema: type) -> list[str]:
    """The docstring of a group of options, and then those of the groups that it extends."""
    own = [cls for cls in schema.__mro__ if "__doc__" in vars(cls) and issubclass(cls, _root(schema))]
    return [line for cls in own for line in inspect.cleandoc(cls.__doc__).splitlines()]


def _root(schema: type) -> type:
    """The options that all models of its kind have, or the group itself where there is no such family."""
    return gans.AdversarialOptions if issubclass(schema, gans.AdversarialOptions) else schema
