"""StyleGAN/EDM dataset zips: images in any folders, and optionally ``dataset.json`` with their labels.

The format is that of ``dataset_tool.py`` in the StyleGAN2-ADA, StyleGAN3 and EDM repositories: ``dataset.json`` holds
``{"labels": [["00000/img00000000.png", 6], …]}``, or ``"labels": null`` (or no such file) for unlabelled data.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from data.collection import Collection, Items, stamp_of
from data.decode import EXTENSIONS, examine
from data.options import DatasetOptions, location
from data.store import builder
from errors import UserError

FORMAT = "StyleGAN/EDM dataset zip"
MAX_CLASSES = 1_000_000  # more is a mistake (hashes or ids as labels) that would only surface as an embedding of that size


def collect(
    options: DatasetOptions, wanted: str = f"FILE.zip, a {FORMAT}", classes: int | None = None, class_names: tuple[str, ...] = ()
) -> Collection:
    """The images and labels of the zip at ``options.path``.

    ``wanted`` tells a user without such a file what to make. ``classes`` is the number of classes where the dataset is a known
    one; by default the largest label + 1. UserError if the file is missing, broken or has no images.
    """
    path = location(options, wanted)
    shown = f"dataset.path={options.path}"
    if path.is_dir():
        raise UserError(f"{shown} is a folder; wanted: {wanted}")

    @contextmanager
    def opened() -> Iterator[zipfile.ZipFile]:
        try:
            archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise UserError(f"{shown} is no zip file, or a truncated one; wanted: {wanted}") from error
        except OSError as error:
            raise UserError(f"{shown} cannot be read ({error.strerror or error})") from error
        with archive:
            yield archive

    @contextmanager
    def items() -> Iterator[Items]:
        with opened() as archive:
            members = [info.filename for info in archive.infolist() if not info.is_dir()]
            names = sorted(name for name in members if is_image(name))
            if not names:
                raise UserError(f"{shown}: no images in the zip (looked for {' '.join(EXTENSIONS)})")
            yield Items(
                names,
                lambda index: examine(_member(archive, names[index]), names[index]),
                lambda: labels_of(archive, names),
                others(members),
            )

    found = directory(path)
    if found is None:  # of an unusual form, or none: zipfile says what is wrong
        with opened() as archive:
            found = repr([(i.filename, i.CRC, i.file_size) for i in archive.infolist()]).encode(), len(archive.infolist())
    return Collection(shown, path.name, stamp_of([found]), path.stat().st_size, found[1], items, classes, class_names)


build = builder(collect)


def directory(path: Path) -> tuple[bytes, int] | None:
    """(the bytes of the zip's central directory, in which every name, size and checksum stands; number of entries).

    Reading only this finds a cached store in milliseconds, where zipfile would take a second for 50,000 entries. None if the
    file does not end as zips do, with the directory right before the closing record (which for many entries is of zip64).
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 98))  # closing record 22, zip64's locator 20 and record 56; a comment is unusual
            tail = file.read()
            if tail[-22:-18] != b"PK\5\6":
                return None
            count, size, start = struct.unpack("<H2I", tail[-12:-2])
            closing = end - 22
            if len(tail) == 98 and tail[56:60] == b"PK\6\7":
                if tail[:4] != b"PK\6\6":
                    return None
                count, size, start = struct.unpack("<3Q", tail[32:56])
                closing = end - 98
            if start + size != closing or not count:
                return None
            file.seek(start)
            return file.read(size), count
    except (OSError, struct.error):
        return None


def others(names: Iterable[str]) -> dict[str, int]:
    """Ending -> number of the files that are neither images nor labels."""
    paths = [PurePosixPath(name) for name in names if not is_image(name)]
    kinds = ["hidden files" if is_hidden(path) else path.suffix.lower() or "files without an ending" for path in paths
             if path.name != "dataset.json"]  # fmt: skip
    return dict(Counter(kinds))


def is_hidden(path: PurePosixPath) -> bool:
    """What macOS and others add."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image to be read."""
    path = PurePosixPath(name)
    return path.suffix.lower() in EXTENSIONS and not is_hidden(path)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        # a wrong checksum, a broken stream, an unknown compression, a password
        raise UserError(f"{name} cannot be unpacked ({error}): the zip is damaged or of an unusual kind, make it anew") from error


def labels_of(archive: zipfile.ZipFile, names: Sequence[str]) -> Tensor | None:
    """Labels (N,) int64 of the images ``names`` from the zip's ``dataset.json``; None without the file or with null labels."""
    found = sorted((n for n in archive.namelist() if Path(n).name == "dataset.json" and "__MACOSX" not in n), key=len)
    if not found:
        return None
    return read_labels(found[0], lambda: _member(archive, found[0]), names, "the zip")


def read_labels(file: str, content_of: Callable[[], bytes], names: Sequence[str], place: str) -> Tensor | None:
    """Labels (N,) int64 of the images ``names`` from a dataset.json at ``file``, whose names are relative to where it lies.

    None with null labels. UserError for another form, or names that are not those of the images in ``place``.
    """
    folder = file.removesuffix("dataset.json")  # of a zip of a folder rather than of its content
    try:
        content = json.loads(content_of())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f'{file} holds a {type(content).__name__}; wanted: {{"labels": [["image name", class], …]}} or null')
    entries = content.get("labels")
    if entries is None:
        return None
    if isinstance(entries, dict):
        entries = list(entries.items())
    if not isinstance(entries, list):
        raise UserError(f"labels in {file} are a {type(entries).__name__}; wanted: [[image name, class], …] or null")
    table: dict[str, int] = {}
    for entry in entries:
        if not (isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[0], str)):
            raise UserError(f"labels in {file} contain {json.dumps(entry)[:60]}; wanted: [image name, class]")
        name, label = folder + entry[0].replace("\\", "/"), entry[1]  # Windows tools write backslashes
        if type(label) is not int or not 0 <= label < MAX_CLASSES:
            shown = json.dumps(label)[:60]
            raise UserError(f"label {shown} of {entry[0]} in {file}; wanted: a class number from 0 to {MAX_CLASSES - 1}")
        if name in table:
            raise UserError(f"{entry[0]} has two labels in {file}")
        table[name] = label
    unlabelled = [name for name in names if name not in table]
    unknown = sorted(table.keys() - set(names))
    if unknown:
        raise UserError(f"{file} labels {len(unknown)} images that are not in {place}, the first is {unknown[0]}")
    if unlabelled:
        raise UserError(
            f"{file} has {len(table)} labels for {len(names)} images; {unlabelled[0]} has none: label all images, "
            'or set "labels" to null'
        )
    return torch.tensor([table[name] for name in names], dtype=torch.int64)
