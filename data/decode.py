"""Encoded images -> one uint8 store: modes, rotation, crop, resize. Every failure names the image."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from errors import UserError

# Only these decoders are ever tried: Pillow's full list has formats that start external programs (EPS).
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
CHUNK = 256  # images a task: one future for each of a million images would cost more memory than the images in flight


def decode(encoded: bytes, name: str) -> Image.Image:
    """One upright 8-bit image in mode "L" (gray) or "RGB" from its file's bytes; UserError naming ``name`` if it is broken.

    Transparent pixels are laid over white, 16-bit gray is scaled (not clipped) to 8 bits, EXIF rotation is applied.
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        image.load()
        if "exif" in image.info:
            image = ImageOps.exif_transpose(image)
        return _eight_bits(image)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen kinds for broken files (SyntaxError, struct.error, …)
        reason = "unknown image format" if isinstance(error, Image.UnidentifiedImageError) else " ".join(str(error).split())
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


def decode_all(
    names: Sequence[str], read: Callable[[str], bytes], resolution: int | None, workers: int, title: str = "data"
) -> Tensor:
    """Images ``names``, whose files' bytes ``read`` gives, as (N, C, resolution, resolution) uint8, in order.

    C is 1 if every image is gray and 3 otherwise. Without ``resolution`` all images must have one size, whose shorter side is
    the resolution; UserError naming the first image that differs. ``workers`` threads decode.
    """
    first = decode(read(names[0]), names[0])
    side = resolution or min(first.size)
    check_memory(len(names), side)
    store = torch.empty(len(names), side, side, 3, dtype=torch.uint8)
    pixels, gray = store.numpy(), np.zeros(len(names), dtype=bool)

    def decode_chunk(start: int) -> int:
        stop = min(start + CHUNK, len(names))
        for index in range(start, stop):
            image = decode(read(names[index]), names[index])
            if resolution is None and image.size != first.size:
                raise UserError(
                    f"{names[index]} is {image.width}x{image.height}, {names[0]} is {first.width}x{first.height}: "
                    "set dataset.resolution to crop and resize all images"
                )
            gray[index] = image.mode == "L"
            pixels[index] = np.atleast_3d(resize_square(image, side))  # gray fills all three channels
        return stop - start

    with tqdm(total=len(names), desc=f"reading {title}", unit="image", disable=None, leave=False) as progress:
        for count in in_threads(decode_chunk, range(0, len(names), CHUNK), workers):
            progress.update(count)
    if gray.all():
        store = store[..., :1]
    return store.permute(0, 3, 1, 2).contiguous()


def in_threads(work: Callable[[int], int], items: Iterable[int], workers: int) -> Iterator[int]:
    """``map(work, items)`` in ``workers`` threads, in order; the first failure (in order) stops the rest."""
    if workers == 0:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def check_memory(count: int, resolution: int) -> None:
    """Refuse a store larger than the machine's memory (UserError) rather than have the system kill the process."""
    need = count * 3 * resolution**2
    try:
        have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return
    if need > have:
        raise UserError(
            f"{count} images at {resolution}x{resolution} take {need / 2**30:.1f} GiB, this machine has {have / 2**30:.1f} GiB: "
            "lower dataset.resolution"
        )
