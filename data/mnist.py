"""MNIST (LeCun et al., 1998) and Fashion-MNIST (arXiv:1708.07747): 60,000 gray training images of 28 x 28 in 10 classes each.

Read from torchvision's own files (the published ``…-ubyte`` files, gzipped or not), a zip or a folder, or downloaded.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from data import archive, arrays, folder
from data.collection import Collection
from data.download import downloaded
from data.options import DatasetOptions, location
from data.store import builder
from errors import UserError

PARTS = {"train": "train", "test": "t10k"}
CLASS_NAMES = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
}  # fmt: skip
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


def collect(options: DatasetOptions, split: str = "train") -> Collection:
    """The images of one ``split`` ("train" or "test"; zips and folders of images have none and are read whole).

    UserError if ``options.path`` is of no known form, or if it is unset and nothing can be downloaded.
    """
    names = CLASS_NAMES[options.name]
    wanted = f"a folder with {file_names('train')[0]} and its like, a folder of images, or a {archive.FORMAT}"
    if options.path is None:
        shown = f"dataset={options.name}"
        raw = download(options, wanted) / "raw"
    else:
        path, shown = location(options, wanted), f"dataset.path={options.path}"
        raw = find_raw(path, split)
        if raw is None:
            images = folder.collect(options, wanted, len(names), names)
            if split != "train":
                raise UserError(f"{shown}: these images are one set, without a {split} part; give its own path")
            return images
    paths = [found(raw, name) or raw / name for name in file_names(split)]
    return arrays.collection(shown, TITLES[options.name], paths, lambda: read(*paths), names)


build = builder(collect)


def file_names(split: str) -> tuple[str, str]:
    """The published names of a split's files of images and labels, unzipped."""
    return f"{PARTS[split]}-images-idx3-ubyte", f"{PARTS[split]}-labels-idx1-ubyte"


def found(raw: Path, name: str) -> Path | None:
    """The file ``name`` in ``raw``, also gzipped or with the dot that some copies have."""
    names = (name, f"{name}.gz", name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz")
    return next((raw / n for n in names if (raw / n).is_file()), None)


def find_raw(path: Path, split: str = "train") -> Path | None:
    """The folder with the ``…-ubyte`` files: ``path`` itself or where torchvision puts it inside; None without."""
    folders = (path, path / "raw", path / "MNIST" / "raw", path / "FashionMNIST" / "raw")
    return next((raw for raw in folders if found(raw, file_names(split)[0])), None)


def download(options: DatasetOptions, wanted: str) -> Path:
    """torchvision's folder of the data set under ``options.download_dir``, with ``raw`` in it."""
    from torchvision.datasets import MNIST, FashionMNIST  # a second that other forms need not pay

    kind = {"mnist": MNIST, "fashion_mnist": FashionMNIST}[options.name]

    def complete(target: Path) -> bool:
        return all(found(target / "raw", name) for split in PARTS for name in file_names(split))

    root = Path(options.download_dir).expanduser()
    return downloaded(
        TITLES[options.name], root, kind.__name__, complete, lambda temporary: kind(str(temporary), download=True),
        f"set dataset.path to {wanted}",
    )  # fmt: skip


def read(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 28, 28) uint8 and labels (N,) of the two files; UserError naming the one that is missing or broken."""
    pixels, numbers = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(numbers):
        raise UserError(f"{images.name} has {len(pixels)} images and {labels.name} {len(numbers)} labels: get both files anew")
    if numbers.max(initial=0) > 9:
        raise UserError(f"{labels.name}: label {numbers.max()}, allowed: 0 to 9")
    return pixels, numbers


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file: two zero bytes, type 8, the number of dimensions, each as big-endian int32, the values."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be unpacked ({error}); get it anew") from error
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], ">i4").astype(int)) if len(content) >= start else ()
    if content[:4] != bytes((0, 0, 8, dimensions)) or not shape or min(shape) < 1 or np.prod(shape) != len(content) - start:
        raise UserError(f"{path}: not an IDX file of {dimensions}-dimensional bytes, or a truncated one; get it anew")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
