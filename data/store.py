"""A collection of files becomes one uint8 store: read once, kept in a cache, memory-mapped from then on.

A cache entry is the folder ``data-<key>/`` with ``images.bin`` (N, C, H, W), ``labels.npy`` and ``about.json``. Its key is made
of the collection's stamp and of what changes pixels, so that no start has to read the files again. It is built in a temporary
folder and renamed; a lock on that folder makes other processes wait for it instead of reading the same files.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from data.collection import Collection, Items, stamp_of
from data.decode import CHUNK, check_memory, in_threads, pad, resize_square
from data.findings import Findings
from data.options import DatasetOptions
from data.source import DataSource, Spec, content_hashes
from errors import UserError

VERSION = 1  # of how files become pixels, and of the cache's form
SMALL = (1000, 4 << 20)  # files and bytes: less is decoded in a fraction of a second, which is not worth a cache entry
CHUNK_BYTES = 32 << 20  # pixels a task
PIECE_BYTES = 8 << 20  # gray pixels that are given colour at a time


def builder(collect: Callable[..., Collection]) -> Callable[..., DataSource]:
    """The function options -> DataSource of what ``collect`` finds; it takes the same further arguments (``split``)."""

    @functools.wraps(collect)
    def build(options: DatasetOptions, **more: Any) -> DataSource:
        return source_of(options, collect(options, **more))

    build.collect = collect
    return build


def source_of(options: DatasetOptions, collection: Collection) -> DataSource:
    """The store of ``collection``, from the cache where it is there. UserError for anything wrong with files or options."""
    try:
        found = _stored(options, collection)
        if found.findings.unreadable and options.on_error == "strict":  # made by a run that skips
            raise UserError(found.findings.unreadable[0][1] + _SKIP_HINT.format(options.path))
    except UserError as error:
        known = str(error).startswith(("dataset.path=", "dataset.cache=", collection.shown))
        raise UserError(str(error) if known else f"{collection.shown}: {error}") from error
    images, labels = found.images, found.labels
    if found.labelled:
        highest = int(labels.max())
        classes = highest + 1 if collection.classes is None else collection.classes
        names = collection.class_names if len(collection.class_names) == classes else ()
        if highest >= classes:
            raise UserError(f"{collection.shown}: dataset.json has label {highest}, dataset={options.name} has classes 0 to "
                            f"{classes - 1}")  # fmt: skip
    else:
        classes, names = 0, ()
    spec = Spec(options.name, images.shape[-1], images.shape[1], classes, names)
    counts = labels.bincount(minlength=classes).tolist() if classes else []
    found.findings.per_class = [(names[k] if names else str(k), n) for k, n in enumerate(counts)]
    return DataSource(images, labels, spec, hashes=found.hashes, findings=found.findings, file=found.file, options=options)


_SKIP_HINT = ", or set dataset.on_error=skip (python -m data.check {} lists every such file)"


class _Stored:
    """Images (N, C, S, S) uint8, labels (N,) int64 (-1 throughout without any), and what was found on the way."""

    def __init__(self, images: Tensor, labels: Tensor, labelled: bool, hashes: dict[str, str] | None, findings: Findings,
                 file: Path | None = None):  # fmt: skip
        self.images, self.labels, self.labelled, self.hashes = images, labels, labelled, hashes
        self.findings, self.file = findings, file


def _stored(options: DatasetOptions, collection: Collection) -> _Stored:
    if options.cache is None or collection.count < SMALL[0] and collection.size < SMALL[1]:
        file = io.BytesIO()
        shape, labels, findings = read(options, collection, file, in_memory=True)
        images = torch.frombuffer(file.getbuffer(), dtype=torch.uint8).view(shape)
        return _Stored(images, *_filled(labels, shape[0]), None, findings)
    key = stamp_of([(VERSION, collection.stamp, options.resolution, options.pad_to)])
    cache = Path(options.cache).expanduser()
    folder = cache / f"data-{key}"
    found = opened(folder)
    if found is None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _building(folder) as temporary:
                found = opened(folder)  # another process may have made it while this one waited
                if found is None:
                    _write(options, collection, temporary)
                    shutil.rmtree(folder, ignore_errors=True)  # a broken one
                    os.replace(temporary, folder)
            found = found or opened(folder)
        except OSError as error:
            raise UserError(
                f"dataset.cache={options.cache}: cannot write there ({error.strerror or error}); give another folder, or "
                "dataset.cache=null to convert the data in memory at each start"
            ) from error
        if found is None:
            raise UserError(f"dataset.cache={options.cache}: {folder.name} cannot be read back; give another folder")
    return found


def _filled(labels: Tensor | None, count: int) -> tuple[Tensor, bool]:
    return (torch.full((count,), -1), False) if labels is None else (labels, True)


def opened(folder: Path) -> _Stored | None:
    """The cache entry in ``folder``, memory-mapped; None if there is none or it is not whole."""
    try:
        about = json.loads((folder / "about.json").read_text())
        shape = tuple(about["shape"])
        file = folder / "images.bin"
        if file.stat().st_size != int(np.prod(shape, dtype=np.int64)):
            return None
        labels = torch.from_numpy(np.load(folder / "labels.npy").astype(np.int64))
        if len(labels) != shape[0]:
            return None
        findings = Findings.of(about["findings"])
        return _Stored(mapped(file, shape), labels, about["labelled"], about["hashes"], findings, file)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mapped(file: Path, shape: tuple[int, ...]) -> Tensor:
    """The content of ``file`` as a read-only (writing crashes) uint8 tensor whose pages the system reads when they are needed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(np.memmap(file, np.uint8, "r", shape=shape))


def _write(options: DatasetOptions, collection: Collection, folder: Path) -> None:
    with (folder / "images.bin").open("w+b") as file:
        shape, labels, findings = read(options, collection, file)
        file.flush()
        os.fsync(file.fileno())
    labels, labelled = _filled(labels, shape[0])
    np.save(folder / "labels.npy", labels.numpy())
    hashes = content_hashes(mapped(folder / "images.bin", shape), labels)
    about = {"from": collection.shown, "shape": shape, "labelled": labelled, "hashes": hashes, "findings": findings.plain()}
    with (folder / "about.json").open("w") as file:
        json.dump(about, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """A fresh temporary folder beside ``folder`` that no other process writes to; what is left of it afterwards is removed."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    waited, locked = False, True
    while True:
        temporary.mkdir(exist_ok=True)
        handle = os.open(temporary, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if waited else fcntl.LOCK_NB))
        except BlockingIOError:
            print("another process is reading this data, waiting for it …", file=sys.stderr, flush=True)
            waited = True
            os.close(handle)
            continue
        except OSError:  # a file system without locks: each process reads for itself
            locked, temporary = False, folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
            temporary.mkdir(exist_ok=True)
        else:
            with suppress(OSError):
                if os.path.samestat(os.fstat(handle), os.stat(temporary)):
                    break
            os.close(handle)  # the process that held it has renamed or removed it
            continue
        break
    try:
        for left in temporary.iterdir():  # by a process that was killed
            left.unlink()
        yield temporary
    finally:
        with suppress(OSError):
            if not locked or os.path.samestat(os.fstat(handle), os.stat(temporary)):
                shutil.rmtree(temporary, ignore_errors=True)
        os.close(handle)


# reading ---------------------------------------------------------------------------------------------------------------


def read(
    options: DatasetOptions, collection: Collection, file: BinaryIO, in_memory: bool = False
) -> tuple[tuple[int, ...], Tensor | None, Findings]:
    """Write all images to ``file``; (shape, labels or None, findings).

    One channel if every image is gray, else three. Without ``options.resolution`` all images must have one size, whose shorter
    side is the resolution. UserError naming the first image that cannot be used; with on_error=skip unreadable ones are left
    out and listed.
    """
    strict, findings = options.on_error == "strict", Findings()
    with collection.items() as items:
        findings.ignored, findings.notes = items.ignored, list(items.notes)
        labels = items.read_labels()  # first: it fails in an instant, decoding takes seconds
        first = _first_readable(items, strict, options.path)
        side = options.resolution or max(min(first[1]), options.pad_to or 0)
        _check_room(len(items.names), side, in_memory, options)
        pixels = Pixels(file, side)

        def fit(image: Image.Image, name: str) -> np.ndarray:
            if options.resolution is None and image.size != first[1]:
                raise UserError(
                    f"{name} is {image.width}x{image.height}, {first[0]} is {first[1][0]}x{first[1][1]}: "
                    "set dataset.resolution to crop and resize all images"
                )
            image = pad(image, options.pad_to) if options.pad_to else image
            return np.atleast_3d(np.asarray(resize_square(image, side))).transpose(2, 0, 1)

        chunk = max(1, min(CHUNK, CHUNK_BYTES // (3 * side * side)))
        kept: list[int] = []
        chunks = survey(items, labels, findings, fit, chunk, options.workers, collection.title, strict, options.path)
        for indices, images in chunks:
            kept += indices
            if images:
                pixels.append(images)
    if not kept:
        raise UserError(f"none of the {len(items.names)} images can be read, the first: {findings.unreadable[0][1]}")
    return (pixels.count, pixels.channels, side, side), None if labels is None else labels[torch.tensor(kept)], findings


def survey(
    items: Items, labels: Tensor | None, findings: Findings, use: Callable[[Image.Image, str], Any], chunk: int, workers: int,
    title: str, strict: bool, path: str | None = None,
) -> Iterator[tuple[list[int], list[Any]]]:  # fmt: skip
    """Decode all images in ``workers`` threads and fill ``findings``; (indices, ``use(image, name)`` of each) of the readable
    ones, chunk by chunk, in order. Unreadable ones raise if ``strict``, else they are listed."""
    count = len(items.names)

    def look(start: int) -> list[tuple]:
        seen = []
        for index in range(start, min(start + chunk, count)):
            try:
                image, facts = items.open(index)
            except UserError as error:
                if strict:
                    raise UserError(f"{error}{_SKIP_HINT.format(path)}") from error
                seen.append((index, None, None, str(error), None))
                continue
            digest = hashlib.blake2b(f"{image.mode}{image.size}".encode() + image.tobytes(), digest_size=16).digest()
            seen.append((index, use(image, items.names[index]), facts, image.mode == "L", digest))
        return seen

    first_with: dict[bytes, int] = {}
    with tqdm(total=count, desc=f"reading {title}", unit="image", disable=None, leave=False) as progress:
        for seen in in_threads(look, range(0, count, chunk), workers):
            indices, used = [], []
            for index, result, facts, gray_or_reason, digest in seen:
                if facts is None:
                    findings.unreadable.append((items.names[index], gray_or_reason))
                    continue
                findings.add(facts, gray_or_reason)
                twin = first_with.setdefault(digest, index)
                if twin != index:
                    differ = labels is not None and bool(labels[twin] != labels[index])
                    findings.duplicates.append((items.names[index], items.names[twin], differ))
                indices.append(index)
                used.append(result)
            progress.update(len(seen))
            yield indices, used


def _first_readable(items: Items, strict: bool, path: str | None) -> tuple[str, tuple[int, int]]:
    """(name, size) of the first image that can be read."""
    failure: UserError | None = None
    for index, name in enumerate(items.names):
        try:
            return name, items.open(index)[0].size
        except UserError as error:
            if strict:
                raise UserError(f"{error}{_SKIP_HINT.format(path)}") from error
            failure = failure or error
    raise UserError(f"none of the {len(items.names)} images can be read, the first: {failure}")


def _check_room(count: int, side: int, in_memory: bool, options: DatasetOptions) -> None:
    if in_memory:
        check_memory(count, side)
        return
    free, need = shutil.disk_usage(options.cache).free, count * 3 * side**2
    if need > free:
        raise UserError(
            f"dataset.cache={options.cache}: {count} images at {side}x{side} take up to {need / 2**30:.1f} GiB there and "
            f"{free / 2**30:.1f} GiB are free; give a folder on another disk, or lower dataset.resolution"
        )


class Pixels:
    """Images appended to a binary file as (count, channels, side, side) bytes; one channel until colour comes."""

    def __init__(self, file: BinaryIO, side: int):
        self.file, self.side, self.count, self.channels = file, side, 0, 1

    def append(self, images: list[np.ndarray]) -> None:
        """Images (1 or 3, side, side) uint8."""
        if self.channels == 1 and any(len(image) == 3 for image in images):
            self._colour()
        shape = (self.channels, self.side, self.side)
        block = np.empty((len(images), *shape), np.uint8)
        for image, place in zip(images, block, strict=True):
            place[:] = image
        self.file.write(block.data)
        self.count += len(images)

    def _colour(self) -> None:
        """Give the gray images so far three channels, from the last to the first, which needs no second file."""
        plane = self.side**2
        step = max(1, PIECE_BYTES // plane)
        for stop in range(self.count, 0, -step):
            start = max(0, stop - step)
            self.file.seek(start * plane)
            gray = np.frombuffer(self.file.read((stop - start) * plane), np.uint8).reshape(-1, 1, plane)
            self.file.seek(3 * start * plane)
            self.file.write(gray.repeat(3, axis=1).data)
        self.file.seek(0, io.SEEK_END)
        self.channels = 3
