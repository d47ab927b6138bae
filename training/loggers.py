"""External loggers. None of them can stop a run: one that fails is reported once and dropped."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from errors import UserError, nearest


class Logger(Protocol):
    """Where scalars and pictures go besides the run folder. The x axis is ``images_seen``."""

    def scalars(self, step: int, images_seen: int, values: Mapping[str, float]) -> None:
        """Values named ``<group>/<name>``; what is not a number is left out."""
        ...

    def picture(self, name: str, path: Path, images_seen: int) -> None:
        """The image file at ``path`` under ``name``."""
        ...

    def close(self) -> None:
        """Flush and end; a second call does nothing."""
        ...


def check_names(names: list[str]) -> list[str]:
    """``names`` once each, ``[]`` for ``["none"]``; UserError for a name that is no logger. Cheap: imports nothing."""
    names = list(dict.fromkeys(map(str, names)))
    if names == ["none"]:
        return []
    for name in names:
        if name == "none":
            raise UserError(f"logger: 'none' stands beside {', '.join(n for n in names if n != 'none')}; name one or the other")
        if name not in _BACKENDS:
            raise UserError(f"logger: unknown '{name}'; {nearest(name, [*_BACKENDS, 'none'])}")
    return names


def build_loggers(
    names: list[str],
    run_dir: Path,
    config: Mapping[str, Any],
    resume: bool,
    say: Callable[[str], None],
    images_seen: int | None = None,
) -> list[Logger]:
    """The loggers called ``names``: "wandb", "tensorboard"; ``[]`` and ``["none"]`` mean none.

    run_dir      every file they write lies under it (``wandb/``, ``tensorboard/``).
    config       plain, resolved options of the run.
    resume       go on with what the run folder holds: the same W&B run; TensorBoard hides what lies past the checkpoint.
    say          is told, once, why a logger was dropped.
    images_seen  of the checkpoint a resumed run starts from; by default TensorBoard goes by the first value it is given.

    UserError for an unknown name or a package that is not installed.
    """
    loggers = []
    for name in check_names(names):
        try:
            backend = _BACKENDS[name](Path(run_dir), config, resume, say, images_seen)
        except ImportError as error:
            raise UserError(f"logger: {name} is not usable here ({error}); pip install {name}") from None
        except Exception as error:
            say(f"logger {name} did not start and is left out: {_one_line(error)}")
            continue
        loggers.append(_Guarded(name, backend, say))
    return loggers


class _Guarded:
    """Passes calls on until one raises; says so then and ignores the rest."""

    def __init__(self, name: str, backend: Logger, say: Callable[[str], None]):
        self.name, self.say = name, say
        self._backend: Logger | None = backend

    def scalars(self, step: int, images_seen: int, values: Mapping[str, float]) -> None:
        self._call("scalars", step, images_seen, _numbers(values))

    def picture(self, name: str, path: Path, images_seen: int) -> None:
        self._call("picture", name, Path(path), images_seen)

    def close(self) -> None:
        self._call("close")
        self._backend = None

    def _call(self, method: str, *arguments: Any) -> None:
        if self._backend is None:
            return
        try:
            getattr(self._backend, method)(*arguments)
        except Exception as error:
            self._backend = None
            self.say(f"logger {self.name} failed and is dropped; the run goes on: {_one_line(error)}")


class _TensorBoard:
    """Event files in ``run_dir/tensorboard``; view them with ``tensorboard --logdir``."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any], resume: bool, say: Callable[[str], None],
                 images_seen: int | None):  # fmt: skip
        from torch.utils.tensorboard import SummaryWriter

        self._make = SummaryWriter
        self._folder, self._config, self._resume, self._images_seen = run_dir / "tensorboard", config, resume, images_seen
        self._writer = None

    def _writer_at(self, images_seen: int):
        """The writer, opened at the first value: only then is it known from where a resumed run writes anew."""
        if self._writer is None:
            purge = None
            if self._resume:
                purge = images_seen if self._images_seen is None else self._images_seen + 1
            self._writer = self._make(str(self._folder), purge_step=purge, flush_secs=30)
            if not self._resume:
                self._writer.add_text("config", "\n".join(f"    {k}: {v}" for k, v in _flat(self._config).items()))
        return self._writer

    def scalars(self, step: int, images_seen: int, values: Mapping[str, float]) -> None:
        writer = self._writer_at(images_seen)
        for name, value in {"step": step, **values}.items():
            if name not in ("images_seen", "kimg"):  # the x axis
                writer.add_scalar(name, value, images_seen)

    def picture(self, name: str, path: Path, images_seen: int) -> None:
        with Image.open(path) as image:
            self._writer_at(images_seen).add_image(name, np.asarray(image.convert("RGB")), images_seen, dataformats="HWC")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb:
    """A Weights & Biases run with its files in ``run_dir/wandb``.

    Without credentials, and when the server does not answer, it records offline (``wandb sync`` uploads later). The
    environment variable WANDB_MODE, if set, decides instead. The run's id is kept in ``wandb/run_id.txt``.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any], resume: bool, say: Callable[[str], None],
                 images_seen: int | None):  # fmt: skip
        import wandb

        self._wandb = wandb
        id_file = run_dir / "wandb" / "run_id.txt"
        run_id = id_file.read_text().strip() if resume and id_file.exists() else ""
        if not run_id:
            run_id = secrets.token_hex(4)
            id_file.parent.mkdir(parents=True, exist_ok=True)
            id_file.write_text(run_id + "\n")
        options = {
            "project": os.environ.get("WANDB_PROJECT", "gan-zoo"), "name": run_dir.resolve().name, "id": run_id,
            "dir": str(run_dir), "config": dict(config), "resume": "allow",
        }  # fmt: skip
        # Console capture would fight with the progress bar; both waits are bounded because the network may be gone.
        settings = wandb.Settings(console="off", init_timeout=30, finish_timeout=60, silent=True)
        offline = "WANDB_MODE" not in os.environ and not _has_credentials(wandb)
        if offline:
            say(f"logger wandb: not logged in, recording offline; 'wandb sync {run_dir / 'wandb'}/offline-run-*' uploads")
        try:
            self._run = wandb.init(**options, mode="offline" if offline else None, settings=settings)
        except Exception as error:
            if offline:
                raise
            say(f"logger wandb: no connection, recording offline: {_one_line(error)}")
            wandb.teardown()  # or the failed attempt's process still holds the run's id
            self._run = wandb.init(**options, mode="offline", settings=settings)
        self._run.define_metric("*", step_metric="images_seen")

    def scalars(self, step: int, images_seen: int, values: Mapping[str, float]) -> None:
        # Without step=: a resumed run repeats steps, which W&B would refuse; images_seen is the x axis.
        self._run.log({**values, "step": step, "images_seen": images_seen})

    def picture(self, name: str, path: Path, images_seen: int) -> None:
        self._run.log({name: self._wandb.Image(str(path)), "images_seen": images_seen})

    def close(self) -> None:
        self._run.finish()


_BACKENDS = {"wandb": _Wandb, "tensorboard": _TensorBoard}


def _has_credentials(wandb: Any) -> bool:
    """Whether W&B finds a login by itself, without asking for one."""
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # releases that cannot be told not to ask
        return bool(os.environ.get("WANDB_API_KEY"))
    except Exception:  # a key of the wrong form
        return False


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The entries of ``values`` that are numbers, tensors of one element included."""
    numbers = {}
    for name, value in values.items():
        if hasattr(value, "item") and getattr(value, "size", None) is not None:
            count = value.numel() if hasattr(value, "numel") else value.size
            value = value.item() if count == 1 else None
        if isinstance(value, bool | int | float):
            numbers[str(name)] = float(value)
    return numbers


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options as one level: ``optim.lr``."""
    flat = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").strip()
