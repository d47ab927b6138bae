"""The ``dataset`` group of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from errors import UserError


@dataclass
class DatasetOptions:
    """Which data, and how it is read.

    name          a key of ``data.DATASETS``.
    path          file or folder the data is read from; None where it ships with a library or can be downloaded.
    resolution    side of the images in pixels; None keeps the native one. Other sizes are centre-cropped and resized.
    xflip         mirror half of the images during training (done by the driver, on the device).
    workers       threads that decode images when the data is loaded; 0 decodes in the calling thread.
    download_dir  where downloaded data is kept and looked for.
    """

    name: str
    path: str | None = None
    resolution: int | None = None
    xflip: bool = False
    workers: int = 2
    download_dir: str = "downloads"


def location(options: DatasetOptions, wanted: str) -> Path:
    """``options.path`` as an existing path; UserError that says what is ``wanted`` there if it is unset or missing."""
    if options.path is None or not str(options.path).strip():
        raise UserError(f"dataset.path is not set: dataset={options.name} needs dataset.path={wanted}")
    path = Path(options.path).expanduser()
    if not path.exists():
        raise UserError(f"dataset.path={options.path}: no such file or folder; wanted: {wanted}")
    return path
