"""Data sets that come as arrays in a few files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from data.collection import Collection, Facts, Items, stamp_of


def collection(
    shown: str, title: str, files: list[Path], read: Callable[[], tuple[np.ndarray, np.ndarray]], class_names: tuple[str, ...]
) -> Collection:
    """Of what ``read`` gives of ``files``: images (N, H, W) or (N, H, W, 3) uint8 and labels (N,)."""
    there = [(path, path.stat()) for path in files if path.is_file()]

    @contextmanager
    def items() -> Iterator[Items]:
        images, labels = read()
        mode = "RGB" if images.ndim == 4 else "L"
        facts = Facts("array", mode, images.shape[2], images.shape[1])
        yield Items(
            [f"image {index}" for index in range(len(images))],
            lambda index: (Image.fromarray(images[index]), facts),
            lambda: torch.from_numpy(labels.astype(np.int64)),
        )

    stamp = stamp_of((str(path.resolve()), status.st_size, status.st_mtime_ns) for path, status in there)
    return Collection(shown, title, stamp, sum(s.st_size for _, s in there), len(there), items, len(class_names), class_names)
