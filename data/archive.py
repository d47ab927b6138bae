"""StyleGAN/EDM dataset zips: images in any folders, and optionally ``dataset.json`` with their labels.

The format is that of ``dataset_tool.py`` in the StyleGAN2-ADA, StyleGAN3 and EDM repositories: ``dataset.json`` holds
``{"labels": [["00000/img00000000.png", 6], …]}``, or ``"labels": null`` (or no such file) for unlabelled data.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from data.decode import EXTENSIONS, decode_all
from data.options import DatasetOptions, location
from data.source import DataSource, Spec
from errors import UserError

FORMAT = "StyleGAN/EDM dataset zip"
MAX_CLASSES = 1_000_000  # more is a mistake (hashes or ids as labels) that would only surface as an embedding of that size


def build(
    options: DatasetOptions, wanted: str = f"FILE.zip, a {FORMAT}", classes: int | None = None, class_names: tuple[str, ...] = ()
) -> DataSource:
    """The images and labels of the zip at ``options.path``.

    ``wanted`` tells a user without such a file what to make. ``classes`` is the number of classes where the dataset is a known
    one; by default the largest label + 1. UserError if the file is missing, broken or inconsistent.
    """
    path = location(options, wanted)
    shown = f"dataset.path={options.path}"
    if path.is_dir():
        raise UserError(f"{shown} is a folder; wanted: {wanted}")
    try:
        with zipfile.ZipFile(path) as archive:
            images, labels = read(archive, options, path.name)
    except zipfile.BadZipFile as error:
        raise UserError(f"{shown} is no zip file, or a truncated one; wanted: {wanted}") from error
    except OSError as error:
        raise UserError(f"{shown} cannot be read ({error.strerror or error})") from error
    except UserError as error:
        raise UserError(f"{shown}: {error}") from error.__cause__
    if labels is None:
        classes, class_names, labels = 0, (), torch.full((len(images),), -1)
    else:
        highest = int(labels.max())
        classes = highest + 1 if classes is None else classes
        if highest >= classes:
            raise UserError(f"{shown}: dataset.json has label {highest}, dataset={options.name} has classes 0 to {classes - 1}")
    spec = Spec(options.name, images.shape[-1], images.shape[1], classes, class_names)
    return DataSource(images, labels, spec)


def read(archive: zipfile.ZipFile, options: DatasetOptions, title: str) -> tuple[Tensor, Tensor | None]:
    """Images (N, C, H, W) uint8 in the order of their names, and labels (N,) int64 or None; UserError on bad content."""
    names = sorted(name for name in archive.namelist() if _is_image(name))
    if not names:
        raise UserError(f"no images in the zip (looked for {' '.join(EXTENSIONS)})")
    labels = read_labels(archive, names)  # first: it fails in an instant, decoding takes seconds
    images = decode_all(names, lambda name: _member(archive, name), options.resolution, options.workers, title)
    return images, labels


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = path.name.startswith(".") or "__MACOSX" in path.parts  # what macOS adds to zips
    return path.suffix.lower() in EXTENSIONS and not hidden


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        # a wrong checksum, a broken stream, an unknown compression, a password
        raise UserError(f"{name} cannot be unpacked ({error}): the zip is damaged or of an unusual kind, make it anew") from error


def read_labels(archive: zipfile.ZipFile, names: list[str]) -> Tensor | None:
    """Labels (N,) int64 of the images ``names`` from ``dataset.json``; None without the file or with null labels."""
    found = sorted((n for n in archive.namelist() if Path(n).name == "dataset.json" and "__MACOSX" not in n), key=len)
    if not found:
        return None
    folder = found[0].removesuffix("dataset.json")  # a zip of a folder rather than of its content
    try:
        content = json.loads(_member(archive, found[0]))
    except ValueError as error:
        raise UserError(f"{found[0]} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f'{found[0]} holds a {type(content).__name__}; wanted: {{"labels": [["image name", class], …]}} or null')
    entries = content.get("labels")
    if entries is None:
        return None
    if isinstance(entries, dict):
        entries = list(entries.items())
    if not isinstance(entries, list):
        raise UserError(f"labels in {found[0]} are a {type(entries).__name__}; wanted: [[image name, class], …] or null")
    table: dict[str, int] = {}
    for entry in entries:
        if not (isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[0], str)):
            raise UserError(f"labels in {found[0]} contain {json.dumps(entry)[:60]}; wanted: [image name, class]")
        name, label = folder + entry[0].replace("\\", "/"), entry[1]  # Windows tools write backslashes
        if type(label) is not int or not 0 <= label < MAX_CLASSES:
            shown = json.dumps(label)[:60]
            raise UserError(f"label {shown} of {entry[0]} in {found[0]}; wanted: a class number from 0 to {MAX_CLASSES - 1}")
        if name in table:
            raise UserError(f"{entry[0]} has two labels in {found[0]}")
        table[name] = label
    unlabelled = [name for name in names if name not in table]
    unknown = sorted(table.keys() - set(names))
    if unknown:
        raise UserError(f"{found[0]} labels {len(unknown)} images that are not in the zip, the first is {unknown[0]}")
    if unlabelled:
        raise UserError(
            f"{found[0]} has {len(table)} labels for {len(names)} images; {unlabelled[0]} has none: label all images, "
            'or set "labels" to null'
        )
    return torch.tensor([table[name] for name in names], dtype=torch.int64)
