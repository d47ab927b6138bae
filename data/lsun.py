"""LSUN (arXiv:1506.03365), one category: from a path only, its archives are tens of gigabytes. Unlabelled."""

from __future__ import annotations

from pathlib import Path

from data import archive, folder
from data.collection import Collection
from data.options import DatasetOptions, location
from data.store import builder
from errors import UserError

WANTED = f"a folder of one category's images, or a {archive.FORMAT} of them"


def collect(options: DatasetOptions) -> Collection:
    """The images at ``options.path``; UserError that says what to do with the published LMDB databases."""
    path = location(options, WANTED)
    if path.is_dir() and (found := next((p for p in (path, *sorted(path.glob("*_lmdb"))) if (p / "data.mdb").is_file()), None)):
        raise UserError(
            f"dataset.path={options.path}: {Path(found).name} is an LMDB database: unpack it first, with the export of LSUN's "
            "data.py or with StyleGAN's dataset_tool.py, and give the folder or zip that comes out"
        )
    return folder.collect(options, WANTED)


build = builder(collect)
