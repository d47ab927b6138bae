"""What a data set is before it is read: its files, how image i is had, and a stamp that changes when the files do."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from PIL import Image
from torch import Tensor

from errors import UserError


class Facts(NamedTuple):
    """How an image lay in its file: kind ("PNG", …), Pillow's mode, upright size in pixels, whether EXIF turned it."""

    kind: str
    mode: str
    width: int
    height: int
    rotated: bool = False


@dataclass
class Items:
    """The images, readable one by one.

    names        one an image, in order, as messages show them.
    open         number of an image -> (upright image in mode "L" or "RGB", Facts); UserError naming it if it is broken.
    read_labels  -> labels (N,) int64, or None without any; UserError if they are wrong.
    ignored      file name ending -> number of files that are neither images nor labels and are left alone.
    notes        what a person should know of the layout, each with what to do.
    """

    names: Sequence[str]
    open: Callable[[int], tuple[Image.Image, Facts]]
    read_labels: Callable[[], Tensor | None] = lambda: None
    ignored: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class Collection:
    """A data set on disk, looked at but not yet read.

    shown        the option that names it, for messages: ``dataset.path=…``.
    title        a short name for the progress bar.
    stamp        hex digest that changes when the files do (see :func:`stamp_of`).
    size, count  bytes of all files, and their number.
    items        opens it for reading: ``with collection.items() as items``.
    classes      number of classes where it is a known one; None: the largest label + 1.
    class_names  of the labels, where they have names.
    """

    shown: str
    title: str
    stamp: str
    size: int
    count: int
    items: Callable[[], AbstractContextManager[Items]]
    classes: int | None = None
    class_names: tuple[str, ...] = ()


def stamp_of(entries: Iterable[Sequence[object]]) -> str:
    """Digest of rows such as (name, size, checksum or time), in order."""
    digest = hashlib.blake2b(digest_size=16)
    for entry in entries:
        digest.update(repr(tuple(entry)).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def class_numbers(found: Sequence[str], classes: int | None, names: Sequence[str], dataset: str) -> dict[str, int]:
    """Sub-folder -> class number: sorted order, or the known data set's own where the folders are named or numbered as it.

    UserError for folders that a data set with ``classes`` known classes does not have.
    """
    if classes is None:
        return {name: number for number, name in enumerate(sorted(found))}
    own = {plain(name): number for number, name in enumerate(names)} | {str(number): number for number in range(classes)}
    if all(plain(name) in own for name in found):
        return {name: own[plain(name)] for name in found}
    if not names and len(found) == classes:
        return {name: number for number, name in enumerate(sorted(found))}
    strange = next(name for name in sorted(found) if plain(name) not in own)
    wanted = f"sub-folders named {', '.join(names[:3])} … or" if names else f"{classes} sub-folders, one a class, or"
    raise UserError(f"sub-folder {strange} is no class of dataset={dataset}; wanted: {wanted} numbered 0 to {classes - 1}")


def plain(name: str) -> str:
    """A class name without what file systems or spelling change: ``T-shirt/top`` and ``t_shirt_top`` are one; 07 is 7."""
    name = re.sub(r"[^0-9a-z]+", "", name.lower())
    return str(int(name)) if name.isdecimal() else name
