"""CelebA (arXiv:1411.7766): 202,599 aligned faces of 178 x 218, unlabelled here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from data import archive, folder
from data.collection import Collection
from data.download import downloaded
from data.options import DatasetOptions
from data.store import builder

FILE = "img_align_celeba.zip"
WANTED = f"{FILE} from the data set's page, a folder of its images, or a {archive.FORMAT} of them"


def collect(options: DatasetOptions) -> Collection:
    """The images at ``options.path``, or of the published zip, downloaded if its host (Google Drive) allows; else UserError."""
    if options.path is None:
        root = Path(options.download_dir).expanduser()
        path = downloaded("CelebA", root, FILE, Path.is_file, _download, f"set dataset.path to {WANTED}")
        found = archive.collect(replace(options, path=str(path)), WANTED)
        found.shown = "dataset=celeba"
        return found
    return folder.collect(options, WANTED)


build = builder(collect)


def _download(temporary: Path) -> None:
    from torchvision.datasets import CelebA
    from torchvision.datasets.utils import download_file_from_google_drive

    identity, md5, name = next(entry for entry in CelebA.file_list if entry[2] == FILE)
    download_file_from_google_drive(identity, str(temporary), name, md5)
