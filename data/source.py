"""What every dataset becomes: one uint8 store of images with labels, indexed by batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from errors import UserError


@dataclass(frozen=True)
class Spec:
    """What a model has to know of its data.

    resolution   side of the square images in pixels.
    channels     1 (gray) or 3 (RGB).
    classes      number of classes, labels are 0 .. classes - 1; 0 when the data is unlabelled.
    class_names  one name a class, or empty when they are not known.
    """

    name: str
    resolution: int
    channels: int
    classes: int
    class_names: tuple[str, ...] = ()


class DataSource:
    """A dataset whose images are one tensor in memory.

    images  (N, channels, resolution, resolution) uint8.
    labels  (N,) int64 class numbers, or -1 throughout when ``spec.classes`` is 0.
    spec    see :class:`Spec`.
    """

    def __init__(self, images: Tensor, labels: Tensor, spec: Spec):
        expected = (len(images), spec.channels, spec.resolution, spec.resolution)
        if images.dtype != torch.uint8 or tuple(images.shape) != expected:
            raise ValueError(f"images must be uint8 {expected}, not {images.dtype} {tuple(images.shape)}")
        if labels.dtype != torch.int64 or tuple(labels.shape) != (len(images),):
            raise ValueError(f"labels must be int64 ({len(images)},), not {labels.dtype} {tuple(labels.shape)}")
        low, high = (0, spec.classes - 1) if spec.classes else (-1, -1)
        if len(labels) and not low <= int(labels.min()) <= int(labels.max()) <= high:
            raise ValueError(f"labels span {int(labels.min())} .. {int(labels.max())}, spec.classes={spec.classes}")
        self.images, self.labels, self.spec = images, labels, spec

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        """Where the store is, and where :meth:`batch` leaves its batches."""
        return self.images.device

    def to(self, device: torch.device | str) -> DataSource:
        """Move the store to ``device``; returns this very source (as ``nn.Module.to`` does)."""
        self.images, self.labels = self.images.to(device), self.labels.to(device)
        return self

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images (n, channels, resolution, resolution) uint8 and labels (n,) int64 (None when unlabelled), on the device.

        ``indices``: (n,) int64 on the CPU, each in [0, N); IndexError otherwise.
        """
        indices = indices.to(self.device)
        images = self.images[indices]
        return images, self.labels[indices] if self.spec.classes else None

    @cached_property
    def content_hash(self) -> str:
        """BLAKE2b (256 bits, hex) of the pixels, their shape and the labels: two sources with one hash hold the same data."""
        digest = hashlib.blake2b(digest_size=32)
        digest.update(repr(tuple(self.images.shape)).encode())
        for part in self.images.split(4096):
            digest.update(part.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().numpy().astype("<i8").data)
        return digest.hexdigest()


def to_float(images: Tensor) -> Tensor:
    """uint8 0 .. 255 -> float32 in [-1, 1]: ``x / 127.5 - 1``."""
    if images.dtype != torch.uint8:
        raise ValueError(f"to_float wants uint8 images, not {images.dtype}")
    return images.float() / 127.5 - 1


def to_uint8(images: Tensor) -> Tensor:
    """Float images in [-1, 1] -> uint8, rounded to the nearest level; values outside are clamped. Inverse of ``to_float``."""
    if not images.is_floating_point():
        raise ValueError(f"to_uint8 wants float images in [-1, 1], not {images.dtype}")
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def require(source: DataSource, *, batch_size: int) -> None:
    """Refuse, before the first step, a dataset that cannot fill one batch (UserError)."""
    if len(source) < batch_size:
        images = "1 image" if len(source) == 1 else f"{len(source)} images"
        raise UserError(f"dataset has {images}, batch_size={batch_size}: lower batch_size or add images")
