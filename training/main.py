"""What ``train.py`` calls: from checked options to a finished run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import data
import gans
from errors import UserError
from training import checkpoint
from training.cli import Arguments, group_values, one_line
from training.config import Config, build_config, check_resume, flatten, plain
from training.draws import key
from training.engine import Diverged, quantities
from training.folder import RunFolder, check_free, find_resumed, make, open_new
from training.processes import Processes, use_tf32
from training.trainer import Stopped, Trainer


def train(values: dict[str, Any], arguments: Arguments) -> int:
    """Train by composed ``values``; the exit status: 0 done, 1 diverged, 130/143 stopped by a signal."""
    if values.get("resume"):
        config, folder, start = _resumed(values, arguments)
        left_out: list[str] = []
    else:
        config, left_out = build_config(values, arguments.explicit, arguments.chosen)
        check_free(config.run_dir)
        folder, start = None, None
    if config.schedule_kimg is None:
        config.schedule_kimg = config.total_kimg

    for name in config.logger:
        if find_spec(name) is None:
            raise UserError(f"logger={name}: the package is not installed; pip install {name}, or leave it out")

    processes = Processes(config.device)
    try:
        _set_backends(config)
        source, gan = build(config)
        left_out += _drop_foreign_schedules(config, gan, source.spec.channels, arguments)
        if left_out and processes.first:
            print(f"left out, since the chosen parts have no such options: {', '.join(left_out)}")
        if processes.first:
            for line in source.report(brief=True):
                print(f"data: {line}")
        if start is not None and start.get("content_hash") != source.content_hash:
            raise UserError(f"dataset.path={config.dataset.path}: not the images and labels that the run was started with")
        trainer = _trainer(gan, source, config, processes, folder, start)
        if folder is None:  # only now: what is refused leaves no folder behind
            trainer.folder = _new_folder(config, processes)
        elif start is None and processes.first:
            make(folder, "resume")
        if processes.first:
            trainer.folder.write_report(source.report())
        return _run(trainer)
    finally:
        processes.close()


def build(config: Config) -> tuple[data.DataSource, gans.GAN]:
    """Data and a freshly initialised GAN, the same in every process."""
    source = data.build(config.dataset)
    data.require(source, batch_size=config.batch_size)
    if source.spec.kind == "points" and config.augment["name"] != "none":
        raise UserError(f"augment={config.augment['name']}: it changes images, and dataset={source.spec.name} is points; use "
                        "augment=none")  # fmt: skip
    torch.manual_seed(key(config.seed, "init"))
    try:
        gan = gans.build(config.gan, source.spec, config.loss, config.penalty)
    except RuntimeError as error:  # torch cannot count so many bytes, or has not got them
        raise UserError(f"gan={config.gan.name}: too large for this machine ({one_line(error)[:200]})") from error
    return source, gan


def _trainer(
    gan: gans.GAN, source: Any, config: Config, processes: Processes, folder: RunFolder | None, start: dict[str, Any] | None
) -> Trainer:
    """UserError if the checkpoint's content is not what this code would have saved."""
    folder = folder or RunFolder(Path(config.run_dir or "."))
    if start is None:
        return Trainer(gan, source, config, processes, folder)
    try:
        return Trainer(gan, source, config, processes, folder, start)
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"resume={folder.path}: does not fit this version of the code ({one_line(error)[:200]})") from error


def _run(trainer: Trainer) -> int:
    try:
        trainer.run()
    except Diverged as error:
        print(f"error: training diverged at {error}; the last checkpoint is in {trainer.folder.path}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that is gone
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; the last checkpoint is in {trainer.folder.path}", file=sys.stderr)
        return 1
    except (Stopped, KeyboardInterrupt) as error:
        print(f"{error or 'stopped at once'}; go on with: python train.py resume={trainer.folder.path}", file=sys.stderr)
        return 128 + (trainer._stop_signal or 2)
    return 0


def _new_folder(config: Config, processes: Processes) -> RunFolder:
    problem: str | None = None
    path: Any = None
    if processes.first:
        try:
            path = open_new(config.run_dir, config.gan.name, config.dataset.name).path
        except UserError as error:
            problem = str(error)
    path, problem = processes.broadcast((path, problem))
    if problem:
        raise UserError(problem)
    return RunFolder(path)


def _resumed(values: Mapping[str, Any], arguments: Arguments) -> tuple[Config, RunFolder, dict[str, Any] | None]:
    """The stored config with what the user typed applied, if that may change."""
    folder, path = find_resumed(str(values["resume"]), values.get("run_dir"))
    start = None if path is None else checkpoint.load(path)
    stored = folder.read_config() if start is None else start.get("config")
    try:
        stored = plain(build_config(stored)[0])  # with the defaults of options that are younger than the run
    except (UserError, TypeError, AttributeError) as error:
        raise UserError(f"resume={values['resume']}: its config is not one of this version of the code ({error})") from error
    for group, choice in arguments.chosen.items():
        if group == "recipe":
            raise UserError(f"recipe={choice}: a resumed run keeps its own config; leave recipe out")
        now, before = values[group]["name"], stored[group]["name"]
        if now != before:
            raise UserError(f"{group}={choice}: the run was started with {group}={before}, which cannot change on resume")
        for option, value in flatten(group_values(group, choice)).items():
            before = flatten(stored[group]).get(option)
            if value != before and f"{group}.{option}" not in arguments.explicit:
                raise UserError(f"{group}={choice}: it has {group}.{option}={value} and the run was started with {before}, "
                                "which cannot change on resume")
    wanted = _copy(stored)
    typed = flatten(values)
    for name in arguments.explicit:
        if name in ("resume", "run_dir"):
            continue
        for full in [f for f in typed if f == name or f.startswith(f"{name}.")] or [name]:
            _put(wanted, full.split("."), typed.get(full))
    config, _ = build_config(wanted, arguments.explicit)
    check_resume(stored, config)
    return config, folder, start


def _copy(values: Any) -> Any:
    return {k: _copy(v) for k, v in values.items()} if isinstance(values, Mapping) else values


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = values[part] = {}
        values = inner
    values[path[-1]] = value


def _drop_foreign_schedules(config: Config, gan: gans.GAN, channels: int, arguments: Arguments) -> list[str]:
    """Leave out a recipe's schedules of quantities that the user's choice of parts does not have."""
    parts = {"loss", "penalty", "augment", "optim"}
    if not parts & ({*arguments.chosen} | {name.split(".")[0] for name in arguments.explicit}):
        return []
    known = quantities(config, gan, channels)
    typed = [e for e in arguments.explicit if e.startswith("schedule.")]
    foreign = [
        name for name in config.schedule
        if name not in known and not any(e == f"schedule.{name}" or e.startswith(f"schedule.{name}.") for e in typed)
    ]  # fmt: skip
    for name in foreign:
        del config.schedule[name]
    return [f"schedule.{name}" for name in foreign]


def _set_backends(config: Config) -> None:
    use_tf32(config.precision == "tf32")
    torch.backends.cudnn.benchmark = not config.deterministic
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
