"""What every dataset becomes: one store of uint8 images (or of float points) with labels, indexed by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data.ahead import Ahead
from data.decode import memory
from data.findings import SHOWN, Findings
from data.options import DatasetOptions
from errors import UserError

STORED = {"images": torch.uint8, "points": torch.float32}
"""Kind of data -> type of its store."""


@dataclass(frozen=True)
class Spec:
    """What a model has to know of its data.

    resolution   side of the square images in pixels; 1 for points.
    channels     1 (gray) or 3 (RGB); 2 for points.
    classes      number of classes, labels are 0 .. classes - 1; 0 when the data is unlabelled.
    class_names  one name a class, or empty when they are not known.
    kind         "images", or "points" of the plane: an "image" of one pixel whose two channels are the coordinates.
    """

    name: str
    resolution: int
    channels: int
    classes: int
    class_names: tuple[str, ...] = ()
    kind: str = "images"


class DataSource:
    """A dataset: one store of images, in memory or mapped from a file, with labels.

    images    (N, channels, resolution, resolution) uint8; points: (N, 2, 1, 1) float32 in about [-1, 1].
    labels    (N,) int64 class numbers, or -1 throughout when ``spec.classes`` is 0.
    spec      see :class:`Spec`.
    findings  what was seen of the files when they were read; None for data that has none.

    hashes    ("labelled", "unlabelled") -> content hash where they are known already; computed when first asked for otherwise.
    file      the file that ``images`` is mapped from, if it is.
    options   ``memory_gb`` decides what is copied to the device, ``workers`` is the number of processes that read the rest.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        spec: Spec,
        *,
        hashes: Mapping[str, str] | None = None,
        findings: Findings | None = None,
        file: Path | None = None,
        options: DatasetOptions | None = None,
    ):
        expected = (len(images), spec.channels, spec.resolution, spec.resolution)
        if images.dtype != STORED[spec.kind] or tuple(images.shape) != expected:
            raise ValueError(f"{spec.kind} must be {STORED[spec.kind]} {expected}, not {images.dtype} {tuple(images.shape)}")
        if labels.dtype != torch.int64 or tuple(labels.shape) != (len(images),):
            raise ValueError(f"labels must be int64 ({len(images)},), not {labels.dtype} {tuple(labels.shape)}")
        low, high = (0, spec.classes - 1) if spec.classes else (-1, -1)
        if len(labels) and not low <= int(labels.min()) <= int(labels.max()) <= high:
            raise ValueError(f"labels span {int(labels.min())} .. {int(labels.max())}, spec.classes={spec.classes}")
        self.images, self.labels, self.spec = images, labels, spec
        self.findings = findings
        self._hashes, self._file, self._options = hashes, file, options
        self._device = images.device
        self._ahead: Ahead | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        """Where :meth:`batch` leaves its batches."""
        return self._device

    def to(self, device: torch.device | str) -> DataSource:
        """Batches come on ``device`` from now on; returns this very source (as ``nn.Module.to`` does).

        The store itself moves there if it is not too large, and otherwise stays where it is.
        """
        self._device = torch.device(device)
        if self.fits(self._device):
            self.images = self.images.to(self._device)
        self.labels = self.labels.to(self._device)
        self._device = self.labels.device  # with its number
        return self

    def fits(self, device: torch.device) -> bool:
        """Whether the store may take that much of the device's memory."""
        limit = None if self._options is None else self._options.memory_gb
        return self.images.nbytes <= (default_limit(device) if limit is None else limit * 1e9)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images (n, channels, resolution, resolution) as stored and labels (n,) int64 (None when unlabelled), on the device.

        ``indices``: (n,) int64 on the CPU, each in [0, N); IndexError otherwise.
        """
        images = None if self._ahead is None else self._ahead.take(indices)
        if images is None:
            rows = indices.to(self.images.device)
            images = self.images.index_select(0, rows)  # images[rows] takes six times as long on a CPU
        if images.device != self._device:
            images = images.to(self._device, non_blocking=True)
        return images, self.labels[indices.to(self._device)] if self.spec.classes else None

    @contextmanager
    def ahead(self, coming: Iterable[Tensor]) -> Iterator[None]:
        """Within: worker processes read ahead the batches of the indices in ``coming``, if the store is on disk.

        It changes only how long :meth:`batch` takes: what is asked for is what comes, also in another order or not announced.
        """
        if self._file is None or self.images.device == self._device and self.fits(self._device) or not self._options.workers:
            yield
            return
        self._ahead = Ahead(self._file, tuple(self.images.shape), coming, self._options.workers, self._device.type == "cuda")
        try:
            yield
        finally:
            self._ahead.close()
            self._ahead = None

    def unlabelled(self) -> DataSource:
        """The same images without their labels."""
        hashes = self._hashes and {"unlabelled": self._hashes["unlabelled"]}
        spec = replace(self.spec, classes=0, class_names=())
        return DataSource(self.images, torch.full_like(self.labels, -1), spec, hashes=hashes, findings=self.findings,
                          file=self._file, options=self._options)  # fmt: skip

    @property
    def content_hash(self) -> str:
        """BLAKE2b (256 bits, hex) of the pixels, their shape and the labels: two sources with one hash hold the same data."""
        if self._hashes is None:
            self._hashes = content_hashes(self.images, self.labels)
        return self._hashes["labelled" if self.spec.classes else "unlabelled"]

    def report(self, brief: bool = False) -> list[str]:
        """What was found in the files, a line each, with what to do about it; ``brief``: only what is worth a look."""
        if self.findings is None:
            return []
        strict, pad_to = self._options.on_error == "strict", self._options.pad_to
        lines = self.findings.lines(self.spec.resolution, pad_to, strict=strict, most=SHOWN if brief else None)
        return [line.text if brief else str(line) for line in lines if not (brief and line.level == "ok")]


def content_hashes(images: Tensor, labels: Tensor) -> dict[str, str]:
    """``DataSource.content_hash`` with these labels and without any."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(repr(tuple(images.shape)).encode())
    for part in images.split(4096):
        digest.update(part.cpu().contiguous().numpy().data)
    without = digest.copy()
    digest.update(labels.cpu().numpy().astype("<i8").data)
    without.update(np.full(len(labels), -1, "<i8").data)
    return {"labelled": digest.hexdigest(), "unlabelled": without.hexdigest()}


def default_limit(device: torch.device) -> float:
    """Bytes that a store may take on ``device``: a quarter of a GPU's memory, half of the machine's without one."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 4
    return memory() / 2


def to_float(images: Tensor) -> Tensor:
    """uint8 0 .. 255 -> float32 in [-1, 1]: ``x / 127.5 - 1``; float32 points as they are."""
    if images.dtype == torch.float32:
        return images
    if images.dtype != torch.uint8:
        raise ValueError(f"to_float wants uint8 images or float32 points, not {images.dtype}")
    return images.float() / 127.5 - 1


def to_uint8(images: Tensor) -> Tensor:
    """Float images in [-1, 1] -> uint8, rounded to the nearest level; values outside are clamped. Inverse of ``to_float``."""
    if not images.is_floating_point():
        raise ValueError(f"to_uint8 wants float images in [-1, 1], not {images.dtype}")
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def to_stored(samples: Tensor, kind: str) -> Tensor:
    """Float samples in [-1, 1] in the form in which a data set of that ``kind`` holds its own: uint8 images, float32 points."""
    return samples.float() if STORED[kind].is_floating_point else to_uint8(samples)


def require(source: DataSource, *, batch_size: int) -> None:
    """Refuse, before the first step, a dataset that cannot fill one batch (UserError)."""
    if len(source) < batch_size:
        images = "1 image" if len(source) == 1 else f"{len(source)} images"
        raise UserError(f"dataset has {images}, batch_size={batch_size}: lower batch_size or add images")
