"""The ``dataset`` group of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from errors import UserError, nearest

ON_ERROR = ("strict", "skip")


@dataclass
class DatasetOptions:
    """Which data, and how it is read.

    name          a key of ``data.DATASETS``.
    path          file or folder the data is read from; None where it ships with a library or can be downloaded.
    resolution    side of the images in pixels; None keeps the native one. Other sizes are centre-cropped and resized.
    pad_to        smaller images are first padded with black to this side (28-pixel digits to 32); None pads nothing.
    xflip         mirror half of the images during training (done by the driver, on the device).
    on_error      at files that cannot be read: strict stops, skip leaves them out and lists them in the run folder.
    workers       threads that decode images at the first read, and processes that read a set which does not fit the device;
                  0 does both in the calling thread.
    cache         folder for the uint8 stores that data is converted to once; None converts at each start, in memory.
    memory_gb     a larger store stays on disk and is read batch by batch; None: a quarter of the GPU's memory, or half of the
                  machine's without one.
    download_dir  where downloaded data is kept and looked for.
    """

    name: str
    path: str | None = None
    resolution: int | None = None
    pad_to: int | None = None
    xflip: bool = False
    on_error: str = "strict"
    workers: int = 2
    cache: str | None = "cache"
    memory_gb: float | None = None
    download_dir: str = "downloads"

    def check(self) -> None:
        """UserError, in one line, for a value that is not allowed."""
        for name, pixels in (("resolution", self.resolution), ("pad_to", self.pad_to)):
            if pixels is not None and pixels < 1:
                default = "the native resolution" if name == "resolution" else "no padding"
                raise UserError(f"dataset.{name}={pixels}: allowed: 1 or more pixels, or null for {default}")
        if self.on_error not in ON_ERROR:
            raise UserError(f"dataset.on_error={self.on_error}: unknown, {nearest(self.on_error, ON_ERROR)}")
        if self.workers < 0:
            raise UserError(f"dataset.workers={self.workers}: allowed: 0 (the calling thread) or more")
        if self.cache is not None and not self.cache.strip():
            raise UserError("dataset.cache=: empty; name a folder, or null to convert the data in memory at each start")
        if self.memory_gb is not None and not self.memory_gb >= 0:
            raise UserError(f"dataset.memory_gb={self.memory_gb}: allowed: 0 (always read from disk) or more")


def refuse(options: DatasetOptions, reason: str, *names: str) -> None:
    """UserError for the first of the options ``names`` that is set: data that is made here has no use for it."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False:
            shown = "true" if value is True else value
            raise UserError(f"dataset.{name}={shown}: {reason} and has no use for it; leave it unset")


def location(options: DatasetOptions, wanted: str) -> Path:
    """``options.path`` as an existing path; UserError that says what is ``wanted`` there if it is unset or missing."""
    if options.path is None or not str(options.path).strip():
        raise UserError(f"dataset.path is not set: dataset={options.name} needs dataset.path={wanted}")
    path = Path(options.path).expanduser()
    try:
        found = path.exists()
    except OSError as error:  # a name that is too long, for example
        raise UserError(f"dataset.path={options.path}: cannot be read ({error.strerror}); wanted: {wanted}") from error
    if not found:
        raise UserError(f"dataset.path={options.path}: no such file or folder; wanted: {wanted}")
    return path
