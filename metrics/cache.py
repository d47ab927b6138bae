"""Small files that save a computation: found again by everything they depend on, never by a name alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def path_of(folder: Path, kind: str, key: Mapping[str, Any]) -> Path:
    """The file in which ``folder`` keeps the ``kind`` of thing that ``key`` (plain values) describes."""
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()
    return folder / f"{kind}-{digest}.pt"


def read(folder: Path | None, kind: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """What :func:`write` has put there; None if there is nothing, or nothing that can be read and was kept for this key."""
    if folder is None or not (path := path_of(folder, kind, key)).is_file():
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            kept = torch.load(path, map_location="cpu", weights_only=True)
        return kept["content"] if kept["key"] == dict(key) else None
    except MemoryError:
        raise
    except Exception:  # a broken file fails in a dozen ways, and is written anew
        return None


def write(
    folder: Path | None, kind: str, key: Mapping[str, Any], content: dict[str, Any], say: Callable[[str], None] = print
) -> None:
    """Keep ``content`` (plain containers of tensors); it appears whole or not at all. A full or read-only disk is only said."""
    if folder is None:
        return
    path = path_of(folder, kind, key)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"key": dict(key), "content": content}, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        say(f"cannot keep {path} for the next time ({' '.join(str(error).split())[:200]})")


def weights_hash(state: Mapping[str, torch.Tensor]) -> str:
    """BLAKE2b (256 bits, hex) of a state dict's tensors in order: which network made a number."""
    digest = hashlib.blake2b(digest_size=32)
    for name, tensor in state.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
