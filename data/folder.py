"""Folders of images: one sub-folder a class, a flat folder, or an unpacked StyleGAN/EDM dataset. A zip is read as such."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from data import archive
from data.collection import Collection, Items, class_numbers, stamp_of
from data.decode import EXTENSIONS, examine
from data.options import DatasetOptions, location
from data.store import builder
from errors import UserError

WANTED = f"a folder of images (one sub-folder a class, or flat), or a {archive.FORMAT}"
STYLEGAN = re.compile(r"\d{5}/img\d{8}\.\w+")  # dataset_tool.py's folders hold a thousand images each, they are no classes
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "traina", "trainb", "testa", "testb"}


def collect(
    options: DatasetOptions, wanted: str = WANTED, classes: int | None = None, class_names: tuple[str, ...] = ()
) -> Collection:
    """The images below ``options.path``, in the order of their names.

    Labels are those of its ``dataset.json`` if there is one; else one class a sub-folder, in sorted order, where all images lie
    in two sub-folders or more; else there are none. Hidden files and folders are left alone. ``classes``, ``class_names``: of a
    known data set, whose sub-folders must be called or numbered as its classes. UserError if the path is missing or holds no
    image.
    """
    path = location(options, wanted)
    if not path.is_dir():
        return archive.collect(options, wanted, classes, class_names)
    shown = f"dataset.path={options.path}"
    try:
        files = sorted(walk(path))
    except OSError as error:
        raise UserError(f"{shown}: {error.filename or ''} cannot be read ({error.strerror or error})") from error
    images = [file for file in files if archive.is_image(file[0])]
    names = [name for name, _, _ in images]
    if not names:
        raise UserError(f"{shown}: no images in the folder (looked for {' '.join(EXTENSIONS)}); wanted: {wanted}")
    described = any(name == "dataset.json" for name, _, _ in files)
    numbers, notes = _classes(path, names, described, options, shown, classes, class_names)

    def labels() -> torch.Tensor | None:
        if described:
            return archive.read_labels("dataset.json", (path / "dataset.json").read_bytes, names, "the folder")
        return torch.tensor([numbers[name.split("/")[0]] for name in names]) if numbers else None

    @contextmanager
    def items() -> Iterator[Items]:
        others = archive.others(name for name, _, _ in files)
        yield Items(names, lambda index: examine(_read(path, names[index]), names[index]), labels, others, notes)

    if numbers and classes is None:
        class_names = tuple(sorted(numbers, key=numbers.__getitem__))
    return Collection(
        shown, path.name or str(path), stamp_of([(str(path.resolve()), *sorted(numbers.items())), *files]),
        sum(size for _, size, _ in images), len(images), items, classes, class_names,
    )  # fmt: skip


build = builder(collect)


def walk(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name relative to ``path``, size, modification time in ns) of every regular file below; links are followed, once."""
    seen, waiting = set(), [("", path)]
    while waiting:
        prefix, folder = waiting.pop()
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:  # a link back up
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    if not entry.name.startswith(".") and entry.name != "__MACOSX":
                        waiting.append((f"{prefix}{entry.name}/", Path(entry.path)))
                elif entry.is_file():  # not a pipe, on which reading would wait for ever, nor a link to nowhere
                    found = entry.stat()
                    yield f"{prefix}{entry.name}", found.st_size, found.st_mtime_ns


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror or error}); replace or remove it") from error


def _classes(
    path: Path, names: list[str], described: bool, options: DatasetOptions, shown: str, classes: int | None,
    class_names: tuple[str, ...],
) -> tuple[dict[str, int], tuple[str, ...]]:  # fmt: skip
    """(sub-folder -> class number, empty without classes; what to say about the layout)."""
    nested = {name.split("/")[0] for name in names if "/" in name}
    beside = [name for name in names if "/" not in name]
    if described or not nested or (len(nested) == 1 and not beside and classes is None):
        return {}, ()
    if all(STYLEGAN.fullmatch(name) for name in names):
        note = "folders of dataset_tool.py without a dataset.json: they are no classes, so there are no labels; add dataset.json"
        return {}, (note,)
    if beside:
        note = (
            f"images lie both beside and inside sub-folders ({beside[0]}, {min(nested)}/…), so there are no labels: move them "
            "into sub-folders if these are classes"
        )
        return {}, (note,)
    try:
        numbers = class_numbers(sorted(nested), classes, class_names, options.name)
    except UserError as error:
        raise UserError(f"{shown}: {error}") from error
    notes = []
    if nested and {name.lower() for name in nested} <= SPLITS:
        training = min(nested, key=lambda name: (not name.lower().startswith("train"), name))
        notes.append(
            f"sub-folders {', '.join(sorted(nested))} are taken as classes; if they are splits or domains, set "
            f"dataset.path={os.path.join(options.path or '', training)}"
        )
    empty = sorted(e.name for e in os.scandir(path) if e.is_dir() and not e.name.startswith(".") and e.name not in nested)
    if empty:
        shown_names = ", ".join(empty[:5])
        notes.append(f"sub-folders without images are no classes ({shown_names}): add images, or remove them")
    return numbers, tuple(notes)
