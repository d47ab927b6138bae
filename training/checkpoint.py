"""Checkpoints: plain tensors and containers in one file that opens with ``weights_only=True`` without this project.

Written to a temporary name, fsynced, then renamed, so that a kill at any moment leaves either the old file or the new one.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from errors import UserError
from training.log import images_of, kimg_name, kimg_name_of

FORMAT = "gan-zoo checkpoint 1"
TEMPORARY = ".tmp"


def nonfinite(state: Any, prefix: str = "") -> str | None:
    """The name of the first tensor in nested containers that has a NaN or an infinity, or None."""
    if isinstance(state, Tensor):
        finite = not state.is_floating_point() or bool(torch.isfinite(state).all())
        return None if finite else prefix
    items = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list | tuple) else ()
    for name, value in items:
        found = nonfinite(value, f"{prefix}.{name}" if prefix else str(name))
        if found:
            return found
    return None


def to_cpu(state: Any) -> Any:
    """Nested containers with their tensors detached on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu()
    if isinstance(state, Mapping):
        return {name: to_cpu(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(to_cpu(value) for value in state)
    return state


def _replace(path: Path, write: Any) -> None:
    temporary = path.with_name(path.name + TEMPORARY)
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def link(target: Path, name: Path) -> None:
    """Make ``name`` another name of ``target``, atomically; a copy where the file system has no hard links."""
    if name.exists() and name.samefile(target):
        return  # renaming one name of a file over another does nothing and would leave the temporary one
    temporary = name.with_name(name.name + TEMPORARY)
    temporary.unlink(missing_ok=True)
    try:
        os.link(target, temporary)
    except OSError:
        shutil.copyfile(target, temporary)
    os.replace(temporary, name)


def save(folder: Path, state: dict[str, Any], keep: int, best: bool) -> Path:
    """Write ``kimg*.pt``, then point ``best.pt`` (if ``best``) and ``latest.pt`` at it, then drop all but the last ``keep``."""
    path = folder / f"{kimg_name(state['clock']['images_seen'])}.pt"
    _replace(path, lambda file: torch.save({"format": FORMAT, **state}, file))
    if best:
        link(path, folder / "best.pt")
    link(path, folder / "latest.pt")
    prune(folder, keep)
    return path


def prune(folder: Path, keep: int) -> None:
    """Delete all but the last ``keep`` of the numbered checkpoints."""
    for old in numbered(folder)[:-keep]:
        old.unlink()


def numbered(folder: Path) -> list[Path]:
    """The run's own ``kimg*.pt`` in the order of training; files of other names are somebody else's."""
    return sorted((p for p in folder.glob("kimg*.pt") if p.stem == kimg_name_of(p)), key=images_of)


def clean(folder: Path) -> None:
    """Remove what a kill in the middle of a write left behind."""
    for leftover in folder.glob(f"*{TEMPORARY}"):
        leftover.unlink()


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; UserError for anything that is not one, and never runs code from the file."""
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of other makes, which are refused anyway
            state = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a broken or foreign file fails in a dozen ways
        reason = "it holds objects that only code could rebuild" if "GLOBAL" in str(error) else "unreadable"
        raise UserError(f"{path}: not a checkpoint of this project ({reason})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise UserError(f"{path}: not a checkpoint of this project (format {FORMAT!r} expected, found {found!r})")
    return state


def find(where: str) -> Path:
    """The checkpoint file that ``where`` names: a file, or a run folder's ``checkpoints/latest.pt``."""
    path = Path(where).expanduser()
    if path.is_dir():
        latest = path / "checkpoints" / "latest.pt"
        if not latest.is_file():
            raise UserError(f"{where}: no checkpoints/latest.pt in this folder; give a run folder or a checkpoint file")
        return latest
    if not path.exists():
        raise UserError(f"{where}: no such file or folder; give a run folder or a checkpoint file")
    return path
