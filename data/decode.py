"""Encoded images -> 8-bit gray or RGB of one size: modes, rotation, padding, crop, resize. Every failure names the image."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps

from data.collection import Facts
from errors import UserError

# Only these decoders are ever tried: Pillow's full list has formats that start external programs (EPS).
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
CHUNK = 256  # the most images a task

T, R = TypeVar("T"), TypeVar("R")


def decode(encoded: bytes, name: str) -> Image.Image:
    """One upright 8-bit image in mode "L" (gray) or "RGB" from its file's bytes; UserError naming ``name`` if it is broken.

    Transparent pixels are laid over white, 16-bit gray is scaled (not clipped) to 8 bits, EXIF rotation is applied.
    """
    return examine(encoded, name)[0]


def examine(encoded: bytes, name: str) -> tuple[Image.Image, Facts]:
    """:func:`decode`, and how the image lay in its file."""
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        image.load()
        kind, mode, rotated = image.format or "?", image.mode, False
        if "exif" in image.info:
            upright = ImageOps.exif_transpose(image)
            rotated = upright is not image and image.getexif().get(0x0112, 1) != 1
            image = upright
        return _eight_bits(image), Facts(kind, mode, *image.size, rotated)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen kinds for broken files (SyntaxError, struct.error, …)
        reason = "unknown image format" if isinstance(error, Image.UnidentifiedImageError) else " ".join(str(error).split())
        if not encoded:
            reason = "the file is empty"
        raise UserError(f"{name}: cannot be read as an image ({reason}); replace or remove it") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    if image.mode in ("L", "RGB"):
        return image if "transparency" not in image.info else _over_white(image)
    if image.mode.startswith("I"):  # Pillow's own conversion clips at 255 and would turn 16-bit images white
        levels = np.asarray(image).astype(np.int64)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError(f"gray levels span {levels.min()} .. {levels.max()}, allowed: 0 .. 65535")
        return Image.fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("float pixels have no known range, 8 or 16 bits are wanted")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        return _over_white(image)
    return image.convert("L" if image.mode == "1" else "RGB")


def _over_white(image: Image.Image) -> Image.Image:
    gray = image.mode in ("L", "LA")
    image = image.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return flat.convert("L" if gray else "RGB")


def resize_square(image: Image.Image, resolution: int) -> Image.Image:
    """The centre square of ``image`` at ``resolution`` x ``resolution`` pixels.

    Reduction by a whole number is the average of the pixels that each one replaces (box filter: no ringing), any other
    reduction is Lanczos; both are antialiased. Enlargement is bicubic.
    """
    side = min(image.size)
    if image.size != (side, side):
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if side == resolution:
        return image
    if side % resolution == 0:
        return _average(image, side // resolution)
    kind = Image.Resampling.LANCZOS if side > resolution else Image.Resampling.BICUBIC
    return image.resize((resolution, resolution), kind)


def _average(image: Image.Image, factor: int) -> Image.Image:
    """Mean over blocks of ``factor`` x ``factor`` pixels.

    Not Pillow's box filter: it rounds halves up in both passes, which brightens 8-bit images by half a level at factor 2.
    """
    pixels = np.asarray(image)
    side = image.width // factor
    mean = pixels.reshape(side, factor, side, factor, -1).mean(axis=(1, 3), dtype=np.float32)
    if pixels.dtype == np.uint8:
        mean = np.rint(mean)
    return Image.fromarray(mean.astype(pixels.dtype).reshape(side, side, *pixels.shape[2:]))


def pad(image: Image.Image, side: int) -> Image.Image:
    """``image`` in the middle of black pixels, at least ``side`` wide and high; the extra pixel of odd differences is behind."""
    width, height = max(image.width, side), max(image.height, side)
    if image.size == (width, height):
        return image
    canvas = Image.new(image.mode, (width, height))
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas


def in_threads(work: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``map(work, items)`` in ``workers`` threads, in order; the first failure (in order) stops the rest.

    No more than two results a thread wait to be taken: a slow disk must not fill the memory.
    """
    if workers == 0:
        yield from map(work, items)
        return
    pool, waiting, items = ThreadPoolExecutor(workers), deque(), iter(items)
    try:
        for item in itertools.islice(items, 2 * workers):
            waiting.append(pool.submit(work, item))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in itertools.islice(items, 1))
    finally:
        pool.shutdown(cancel_futures=True)


def check_memory(count: int, resolution: int) -> None:
    """Refuse a store larger than the machine's memory (UserError) rather than have the system kill the process."""
    need, have = count * 3 * resolution**2, memory()
    if need > have:
        raise UserError(
            f"{count} images at {resolution}x{resolution} take {need / 2**30:.1f} GiB, this machine has {have / 2**30:.1f} GiB: "
            "lower dataset.resolution"
        )


def memory() -> float:
    """Bytes of memory of this machine; infinite where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf
