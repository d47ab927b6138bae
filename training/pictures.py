"""Pictures: grids with titles for people, and folders or .npz archives of single images for metric tools."""

from __future__ import annotations

import json
import math
import os
import shutil
import zipfile
from bisect import bisect_right
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from errors import UserError

BACKGROUND, INK, FAINT_INK = (255, 255, 255), (32, 36, 44), (96, 102, 112)


def to_uint8(images: Tensor) -> np.ndarray:
    """Images (n, channels, height, width), float in [-1, 1] -> uint8 (n, height, width, channels) on the CPU.

    Rounds to the nearest of the 256 levels, clamps what lies outside, and shows non-finite values as mid gray. The inverse
    of ``x / 127.5 - 1``.
    """
    if images.ndim != 4:
        raise ValueError(f"images must be (n, channels, height, width), got shape {tuple(images.shape)}")
    images = images.detach().float()
    images = torch.where(images.isfinite(), images, torch.zeros_like(images))
    images = (images * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)
    return images.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def _as_uint8(images: Tensor | np.ndarray) -> np.ndarray:
    """Float tensors through :func:`to_uint8`; uint8 arrays (n, height, width, channels) as they are; checks the shape."""
    if isinstance(images, Tensor):
        images = to_uint8(images)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"images must be uint8 (n, height, width, 1 or 3), got {images.dtype} {images.shape}")
    return images


# Grids ---------------------------------------------------------------------------------------------------------------


def grid(
    images: Tensor | np.ndarray,
    columns: int,
    row_titles: Sequence[str] | None = None,
    column_titles: Sequence[str] | None = None,
    caption: str | None = None,
    min_width: int = 512,
) -> Image.Image:
    """One RGB picture of all images, row after row, on white.

    images         (n, 1 or 3, height, width) float in [-1, 1], or (n, height, width, 1 or 3) uint8; n >= 1.
    columns        images a row; the last row may be shorter.
    row_titles     left of the rows, one a row.
    column_titles  above the columns, one a column.
    caption        below, wrapped to the picture's width.
    min_width      pixels: smaller images are enlarged by a whole factor (nearest neighbour) until the picture is as wide.
    """
    tiles = _as_uint8(images)
    count, height, width, _ = tiles.shape
    if count < 1 or columns < 1:
        raise ValueError(f"a grid needs at least one image and one column, got {count} and {columns}")
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    for name, titles, lanes in (("row_titles", row_titles, rows), ("column_titles", column_titles, columns)):
        if titles is not None and len(titles) != lanes:
            raise ValueError(f"{name} must have {lanes} entries for {count} images in {columns} columns, got {len(titles)}")
    row_titles, column_titles = list(map(str, row_titles or [])), list(map(str, column_titles or []))

    border = 8
    scale = 1
    while 2 * border + columns * width * scale + (columns - 1) * _gap(width * scale) < min_width:
        scale += 1
    tile_w, tile_h, gap = width * scale, height * scale, _gap(width * scale)
    body_w, body_h = columns * tile_w + (columns - 1) * gap, rows * tile_h + (rows - 1) * gap

    texts = "".join([*row_titles, *column_titles, caption or ""])
    font = _font(max(13, min(20, body_w // 40)), texts)
    small = _font(max(12, min(16, body_w // 48)), texts)
    line_h, small_h = _line_height(font), _line_height(small)

    row_lines = [_wrap(title, font, max(160, body_w // 4), max(1, tile_h // line_h)) for title in row_titles]
    column_lines = [_wrap(title, font, tile_w, 3) for title in column_titles]
    left = border + (math.ceil(max(font.getlength(t) for lines in row_lines for t in lines)) + 10 if row_titles else 0)
    top = border + (max(map(len, column_lines)) * line_h + 4 if column_titles else 0)
    picture_w = left + body_w + border
    caption_lines = _wrap(caption, small, picture_w - 2 * border, 8) if caption else []
    picture_h = top + body_h + border + (len(caption_lines) * small_h + border if caption_lines else 0)

    picture = Image.new("RGB", (picture_w, picture_h), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        image = Image.fromarray(tile if tile.shape[-1] == 3 else tile[:, :, 0])
        if scale > 1:
            image = image.resize((tile_w, tile_h), Image.Resampling.NEAREST)
        picture.paste(image.convert("RGB"), (left + column * (tile_w + gap), top + row * (tile_h + gap)))
    for row, lines in enumerate(row_lines):
        middle = top + row * (tile_h + gap) + tile_h / 2
        for number, line in enumerate(lines):
            draw.text((left - 10, middle + (number - (len(lines) - 1) / 2) * line_h), line, INK, font, anchor="rm")
    for column, lines in enumerate(column_lines):
        middle = left + column * (tile_w + gap) + tile_w / 2
        for number, line in enumerate(reversed(lines)):
            draw.text((middle, top - 4 - (number + 0.5) * line_h), line, INK, font, anchor="mm")
    for number, line in enumerate(caption_lines):
        draw.text((border, top + body_h + border + (number + 0.5) * small_h), line, FAINT_INK, small, anchor="lm")
    return picture


def save_grid(
    path: str | Path,
    images: Tensor | np.ndarray,
    columns: int,
    row_titles: Sequence[str] | None = None,
    column_titles: Sequence[str] | None = None,
    caption: str | None = None,
    min_width: int = 512,
) -> Path:
    """:func:`grid` as a PNG file; it appears under ``path`` only when it is whole. Folders are made as needed."""
    return _save_png(grid(images, columns, row_titles, column_titles, caption, min_width), Path(path))


def _gap(tile_width: int) -> int:
    return 2 if tile_width < 128 else 4


def _font(size: int, text: str) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Pillow's own font, or matplotlib's DejaVu Sans for ``text`` beyond ASCII, for which Pillow's has no glyphs."""
    if not text.isascii() and (spec := find_spec("matplotlib")) is not None:
        for folder in spec.submodule_search_locations or []:
            path = Path(folder) / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
            if path.exists():
                return ImageFont.truetype(str(path), size)
    return ImageFont.load_default(size)


def _line_height(font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> int:
    top, bottom = font.getbbox("Ágjy" if isinstance(font, ImageFont.FreeTypeFont) else "Agjy")[1::2]
    return math.ceil((bottom - top) * 1.15)


def _wrap(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int, max_lines: int) -> list[str]:
    """``text`` in at most ``max_lines`` lines of ``width`` pixels, broken between words; what does not fit ends in "..."."""
    lines = [""]
    for paragraph in text.splitlines():
        for word in paragraph.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and font.getlength(longer) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        lines.append("")
    lines = [line for line in lines if line] or [""]
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], " ".join(lines[max_lines - 1 :])]
    return [_shorten(line, font, width) for line in lines]


def _shorten(line: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    fits = bisect_right(range(len(line)), width, key=lambda letters: font.getlength(line[:letters] + "...")) - 1
    return line[: max(fits, 0)].rstrip() + "..."


def _save_png(image: Image.Image, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.tmp")
    image.save(part, format="PNG")
    os.replace(part, path)
    return path


# Many single images --------------------------------------------------------------------------------------------------


class Writer:
    """What both writers share: the count, the labels, and ``with``, which discards an unfinished result on an exception."""

    def __init__(self) -> None:
        self.count = 0
        self.labels: list[int] = []
        self._shape: tuple[int, ...] | None = None

    def _checked(self, images: np.ndarray, labels: Tensor | np.ndarray | Sequence[int] | None) -> np.ndarray:
        images = _as_uint8(images)
        if self._shape not in (None, images.shape[1:]):
            raise ValueError(f"all images must have the shape of the first, {self._shape}, got {images.shape[1:]}")
        labels = [] if labels is None else [int(label) for label in labels]
        if labels and len(labels) != len(images):
            raise ValueError(f"{len(images)} images came with {len(labels)} labels")
        if self.count and len(images) and bool(labels) != bool(self.labels):
            raise ValueError("either every batch has labels or none has")
        self._shape = images.shape[1:]
        self.labels += labels
        return images

    def close(self) -> None:
        raise NotImplementedError

    def discard(self) -> None:
        """Give up: remove what is only half done."""

    def __enter__(self):
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.discard() if kind else self.close()


class ImageFolderWriter(Writer):
    """Writes images as ``img00000000.png``, ``img00000001.png``, … (gray as one-channel PNG, which metric tools widen to RGB).

    With labels, ``close()`` also writes ``dataset.json`` beside them: {"labels": [["img00000000.png", 3], …]}.

    folder  made if missing. UserError if it holds images numbered ``start`` or later: left-overs of a larger set would
            silently count as samples.
    start   number of the first image.
    """

    def __init__(self, folder: str | Path, start: int = 0):
        super().__init__()
        self.folder, self.start = Path(folder), start
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file; name a folder for the images")
        self.folder.mkdir(parents=True, exist_ok=True)
        stale = [p.name for p in self.folder.glob("img*.png") if not (p.stem[3:].isdigit() and int(p.stem[3:]) < start)]
        if stale:
            raise UserError(f"{self.folder} already holds {len(stale)} images ({min(stale)} …); empty it or name another folder")

    def write(self, images: Tensor | np.ndarray, labels: Tensor | np.ndarray | Sequence[int] | None = None) -> None:
        """A batch, uint8 (n, height, width, 1 or 3) or a float tensor (n, 1 or 3, height, width) in [-1, 1]; labels (n,)."""
        for image in self._checked(images, labels):
            picture = Image.fromarray(image if image.shape[-1] == 3 else image[:, :, 0])
            _save_png(picture, self.folder / f"img{self.start + self.count:08d}.png")
            self.count += 1

    def close(self) -> None:
        """Write ``dataset.json`` if there are labels; those of images before ``start`` are kept."""
        if not self.labels:
            return
        path = self.folder / "dataset.json"
        entries = []
        if self.start and path.exists():
            entries = [entry for entry in json.loads(path.read_text())["labels"] if int(entry[0][3:11]) < self.start]
        entries += [[f"img{self.start + number:08d}.png", label] for number, label in enumerate(self.labels)]
        part = path.with_name(".dataset.json.tmp")
        part.write_text(json.dumps({"labels": entries}))
        os.replace(part, path)


class NpzWriter(Writer):
    """Writes one uncompressed ``.npz`` in the layout of the ADM evaluation suite (arXiv:2105.05233).

    ``arr_0``  uint8 (n, height, width, 3). Gray images are repeated to three channels, because the tools that read this
               layout feed it to an RGB network as it is.
    ``arr_1``  int64 (n,), only when batches come with labels.

    Batches go straight to a temporary file beside ``path``; memory use does not grow with n, and ``path`` appears on
    ``close()``, whole. UserError if ``path`` does not end in .npz.
    """

    def __init__(self, path: str | Path):
        super().__init__()
        self.path = Path(path)
        if self.path.suffix != ".npz":
            raise UserError(f"{self.path}: the archive's name must end in .npz")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._raw_path = self.path.with_name(f".{self.path.name}.raw.tmp")
        self._zip_path = self.path.with_name(f".{self.path.name}.tmp")
        self._raw = open(self._raw_path, "wb")

    def write(self, images: Tensor | np.ndarray, labels: Tensor | np.ndarray | Sequence[int] | None = None) -> None:
        """A batch, uint8 (n, height, width, 1 or 3) or a float tensor (n, 1 or 3, height, width) in [-1, 1]; labels (n,)."""
        images = self._checked(images, labels)
        self._raw.write(np.ascontiguousarray(images.repeat(3, axis=-1) if images.shape[-1] == 1 else images))
        self.count += len(images)

    def close(self) -> None:
        """Put the archive together and move it to ``path``; a second call does nothing."""
        if self._raw.closed:
            return
        self._raw.close()
        shape = (self.count, *(self._shape or (0, 0, 0))[:2], 3)
        with zipfile.ZipFile(self._zip_path, "w", zipfile.ZIP_STORED) as archive:
            # The array's header holds n, which is known only now: hence the raw file, copied here block by block.
            with archive.open("arr_0.npy", "w", force_zip64=True) as entry, open(self._raw_path, "rb") as raw:
                np.lib.format.write_array_header_1_0(entry, {"descr": "|u1", "fortran_order": False, "shape": shape})
                shutil.copyfileobj(raw, entry, 1 << 22)
            if self.labels:
                with archive.open("arr_1.npy", "w") as entry:
                    np.lib.format.write_array(entry, np.asarray(self.labels, dtype=np.int64), allow_pickle=False)
        os.replace(self._zip_path, self.path)
        self._raw_path.unlink()

    def discard(self) -> None:
        """Remove the temporary files; ``path`` stays as it was."""
        self._raw.close()
        self._raw_path.unlink(missing_ok=True)
        self._zip_path.unlink(missing_ok=True)
