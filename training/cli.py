"""From the command line to a checked config. Hydra composes, our schema checks, users read one line.

Hydra's own checks have a hole (``+key=value``) and messages of many lines, so every plain override is handed to it as
``++key=value`` and the composed config is checked once, by ``training.config``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from errors import UserError, nearest

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
PATHS = ("run_dir", "resume", "dataset.path", "dataset.download_dir")
TEXT = ("checkpoint", "out", "device")  # never numbers, even if they look like one
HYDRA_FLAGS = ("-m", "--multirun", "--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version", "--resolve")


@dataclass
class Arguments:
    """A parsed command line.

    overrides  what Hydra gets.      explicit  full names of options typed.     chosen  groups chosen, name -> value.
    """

    overrides: list[str] = field(default_factory=list)
    explicit: list[str] = field(default_factory=list)
    chosen: dict[str, str] = field(default_factory=dict)


def groups() -> dict[str, list[str]]:
    """Config groups and their choices, from the folders of configs/."""
    return {d.name: sorted(f.stem for f in d.glob("*.yaml")) for d in sorted(CONFIGS.iterdir()) if d.is_dir()}


def parse(argv: Sequence[str]) -> Arguments:
    """Read ``key=value`` arguments; UserError for anything of another form or a group's unknown choice."""
    arguments, choices = Arguments(), groups()
    for argument in argv:
        if argument.startswith("~"):
            arguments.overrides.append(argument)
            arguments.explicit.append(argument[1:].split("=")[0])
            continue
        name, equals, value = argument.lstrip("+").partition("=")
        if not equals or not name:
            raise UserError(f"{argument}: arguments have the form option=value, for example batch_size=64")
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise UserError(f"{argument}: '{name}' is not an option name")
        if name.startswith("hydra."):
            arguments.overrides.append(argument)
        elif name in choices and name not in ("recipe",):
            if value not in choices[name] and "," not in value:
                raise UserError(f"{name}={value}: unknown {name}, {nearest(value, choices[name])}")
            arguments.chosen[name] = value
            arguments.overrides.append(f"{name}={value}")
        else:
            if name in PATHS and value[:1] not in "'\"" and value not in ("null", ""):
                value = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
            arguments.explicit.append(name)
            arguments.overrides.append(f"++{name}={value}")
    return arguments


def compose(arguments: Arguments, config_name: str = "train") -> dict[str, Any]:
    """Compose the YAML files and overrides into plain containers (unchecked)."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = hydra.compose(config_name, arguments.overrides)
        return OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """The message of somebody else's exception, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def guard(job: Callable[[], int | None]) -> int:
    """Run ``job``; a user's mistake becomes one line on stderr and status 2."""
    import torch

    try:
        return job() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError as error:
        print(f"error: out of memory; set micro_batch to a part of batch_size ({one_line(error)[:200]})", file=sys.stderr)
        return 1


def main(job: Callable[[dict[str, Any], Arguments], int | None], argv: Sequence[str] | None = None) -> int:
    """Entry point of train.py: compose and run ``job(values, arguments)``, or hand multirun and help to Hydra."""
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = [a for a in argv if a.startswith("-")]

    def once() -> int | None:
        for flag in flags:
            raise UserError(f"{flag}: unknown flag, {nearest(flag, HYDRA_FLAGS)}; options are written option=value")
        arguments = parse(argv)
        return job(compose(arguments), arguments)

    if not any(f.split("=")[0] in HYDRA_FLAGS for f in flags):
        return guard(once)
    return guard(lambda: _through_hydra(job, argv))


def simple_main(job: Callable[[dict[str, Any]], int | None], usage: str, argv: Sequence[str] | None = None) -> int:
    """Entry point of a script with a flat list of ``option=value``; ``--help`` prints ``usage``."""
    import yaml

    argv = list(sys.argv[1:] if argv is None else argv)
    if any(a in ("-h", "--help") for a in argv):
        print(usage)
        return 0

    def once() -> int | None:
        values: dict[str, Any] = {}
        for argument in argv:
            name, equals, value = argument.lstrip("+").partition("=")
            if not equals or not name.isidentifier():
                raise UserError(f"{argument}: arguments have the form option=value, for example seed=1")
            try:
                values[name] = value if name in TEXT else yaml.safe_load(value)
            except yaml.YAMLError:
                values[name] = value
        return job(values)

    return guard(once)


def _through_hydra(job: Callable[[dict[str, Any], Arguments], int | None], argv: list[str]) -> int:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    flags, rest, takes_value = [], [], ("--cfg", "-c", "--info", "-i", "--package", "-p")
    words = iter(argv)
    for word in words:
        if word.startswith("-"):
            flags.append(word)
            if word in takes_value:
                flags += [w for w in [next(words, None)] if w is not None]
        else:
            rest.append(word)
    arguments = parse(rest)
    failed: list[int] = []

    @hydra.main(config_path=str(CONFIGS), config_name="train", version_base="1.3")
    def task(composed: Any) -> None:
        # each job of a sweep has its own overrides
        own = parse([o for o in HydraConfig.get().overrides.task])
        status = guard(lambda: job(OmegaConf.to_container(composed, resolve=True), own))
        if status:
            failed.append(status)

    old = sys.argv
    sys.argv = [old[0], *flags, *arguments.overrides]
    os.environ.setdefault("HYDRA_FULL_ERROR", "0")
    try:
        task()
    finally:
        sys.argv = old
    return max(failed, default=0)
