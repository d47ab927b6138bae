"""Pictures and files of samples, by what kind of data they are: grids of images, or points of the plane over real ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data import Spec
from data.points import GEOMETRIES, geometry
from errors import UserError
from training.pictures import ImageFolderWriter, NpzWriter, Writer, save_grid

POINTS = 2000  # of samples, and of real ones behind them
SIDE = 512  # pixels
LIMIT = 1.2  # of both axes


def save_scatter(path: str | Path, points: Tensor, spec: Spec) -> Path:
    """A PNG of sampled ``points`` (n, 2, 1, 1) or (n, 2), over 2,000 faint real ones where the data set is one of ours.

    The axes are always the same, [-1.2, 1.2]; a sample beyond them, or one that is not finite, is not seen.
    """
    from matplotlib.figure import Figure  # half a second that other data need not pay

    path = Path(path)
    figure = Figure(figsize=(SIDE / 100, SIDE / 100), dpi=100, facecolor="white")
    ax = figure.add_axes((0.1, 0.07, 0.88, 0.91), aspect="equal", xlim=(-LIMIT, LIMIT), ylim=(-LIMIT, LIMIT))
    if spec.name in GEOMETRIES:
        real = geometry(spec.name).draw(POINTS, torch.Generator().manual_seed(1))
        ax.scatter(*real.T.numpy(), s=9, color="#cbd5e0", linewidths=0)
    ax.scatter(*points.detach().float().cpu().flatten(1).T.numpy(), s=4, color="#2b6cb0", linewidths=0)
    ax.tick_params(labelsize=8, color="#718096", labelcolor="#718096")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#cbd5e0")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.tmp")
    figure.savefig(part, format="png")
    os.replace(part, path)
    return path


class PointsWriter(Writer):
    """Writes one ``.npz`` with ``arr_0``, float32 (n, 2). Points are few bytes and stay in memory until ``close()``."""

    def __init__(self, path: str | Path):
        super().__init__()
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._parts: list[np.ndarray] = [np.empty((0, 2), np.float32)]

    def write(self, images: Tensor, labels: Tensor | None = None) -> None:
        """A batch (n, 2, 1, 1)."""
        self._parts.append(images.detach().float().cpu().flatten(1).numpy())
        self.count += len(images)

    def close(self) -> None:
        """Write the file; it appears whole."""
        part = self.path.with_name(f".{self.path.name}.tmp")
        with part.open("wb") as file:
            np.savez(file, np.concatenate(self._parts))
        os.replace(part, self.path)


@dataclass(frozen=True)
class Form:
    """How samples of one kind of data are shown and kept.

    what     samples in messages.
    default  samples that sample.py draws.
    picture  (path, samples, data, columns, row titles) -> path of the picture.
    count    (rows, columns of a grid) -> how many samples a picture of a run has.
    archive, folder  make the writer for out=set.npz and for out=<folder>; None: there is no such thing.
    walks    whether interpolations can be shown.
    size     (data) -> what a run says of it besides the number of samples.
    """

    what: str
    default: int
    picture: Callable[[Path, Tensor, Spec, int, Sequence[str] | None], Path]
    count: Callable[[int, int], int]
    archive: Callable[[Path], Writer]
    folder: Callable[[Path], Writer] | None
    walks: bool
    size: Callable[[Spec], str]


def _size(spec: Spec) -> str:
    return f"{spec.resolution} px, {spec.channels} channel{'s' if spec.channels > 1 else ''}, {spec.classes} classes"


FORMS = {
    "images": Form(
        "images", 64, lambda path, samples, spec, columns, titles: save_grid(path, samples, columns, row_titles=titles),
        lambda rows, columns: rows * columns, NpzWriter, ImageFolderWriter, True, _size,
    ),
    "points": Form(
        "points", POINTS, lambda path, samples, spec, columns, titles: save_scatter(path, samples, spec),
        lambda rows, columns: max(POINTS, rows * columns), PointsWriter, None, False, lambda spec: "of the plane",
    ),
}  # fmt: skip
"""``Spec.kind`` -> how its samples are shown."""


def form_of(spec: Spec) -> Form:
    """The form of samples of a model of ``spec``."""
    return FORMS[spec.kind]


def writer(spec: Spec, out: Path, shown: str) -> Writer:
    """What writes samples one by one to ``out``, an .npz archive or a folder; UserError for points and a folder."""
    form = form_of(spec)
    if out.suffix:
        return form.archive(out)
    if form.folder is None:
        raise UserError(f"out={shown}: a folder is for images, and this model makes {form.what} (dataset={spec.name}); give "
                        "picture.png or set.npz")  # fmt: skip
    return form.folder(out)
