"""CIFAR-10 (Krizhevsky, 2009): 50,000 training images of 32 x 32 in 10 classes.

Read from a StyleGAN/EDM dataset zip, from the extracted ``cifar-10-batches-py`` folder, or downloaded by torchvision.
"""

from __future__ import annotations

import http.client
import os
import pickle
import socket
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data import archive
from data.decode import check_memory, resize_square
from data.options import DatasetOptions, location
from data.source import DataSource, Spec
from errors import UserError

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER = "cifar-10-batches-py"
BATCHES = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
WANTED = f"the extracted {FOLDER} folder, or a {archive.FORMAT}"
TIMEOUT = 30.0  # seconds without a byte after which a download is given up


def build(options: DatasetOptions, split: str = "train") -> DataSource:
    """The images of one ``split`` ("train" or "test"; a zip has no splits and is read whole), and their labels.

    UserError if ``options.path`` is neither form, or if it is unset and nothing can be downloaded.
    """
    if options.path is None:
        folder = downloaded(Path(options.download_dir).expanduser())
    else:
        path = location(options, WANTED)
        if path.is_file():
            return archive.build(options, wanted=WANTED, classes=10, class_names=CLASS_NAMES)
        folder = find_folder(path)
        if folder is None:
            raise UserError(f"dataset.path={options.path} holds no {BATCHES['train'][0]}; wanted: {WANTED}")
    parts = [read_batch(folder / name) for name in BATCHES[split]]
    images, labels = torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
    if options.resolution not in (None, images.shape[-1]):
        images = _resize(images, options.resolution)
    return DataSource(images, labels, Spec(options.name, images.shape[-1], 3, 10, CLASS_NAMES))


def find_folder(path: Path) -> Path | None:
    """The folder with the batch files: ``path`` itself or the standard one inside it; None if neither has them."""
    return next((folder for folder in (path, path / FOLDER) if (folder / BATCHES["train"][0]).is_file()), None)


def downloaded(root: Path) -> Path:
    """The batch folder under ``root``, from an earlier download or a new one.

    The download is unpacked and checked (MD5) in a temporary folder and then renamed: one that fails leaves nothing behind.
    """
    from torchvision.datasets import CIFAR10  # a second that the other forms need not pay
    from torchvision.datasets.utils import check_integrity, extract_archive

    folder = root / FOLDER
    if find_folder(folder) is not None:
        return folder
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision sets none and would wait for ever on a dead connection
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".cifar10-") as temporary:
            ready = root / CIFAR10.filename
            if check_integrity(ready, CIFAR10.tgz_md5):
                extract_archive(ready, temporary)
            else:
                CIFAR10(temporary, download=True)
            os.replace(Path(temporary) / FOLDER, folder)
    except (OSError, RuntimeError, EOFError, tarfile.TarError, http.client.HTTPException) as error:
        if find_folder(folder) is not None:  # another process was faster
            return folder
        reason = " ".join(str(error).split())
        raise UserError(f"CIFAR-10 could not be downloaded to {root} ({reason}): set dataset.path to {WANTED}") from error
    finally:
        socket.setdefaulttimeout(timeout)
    return folder


def read_batch(path: Path) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) int64 of one batch file; UserError if it is missing or not one."""
    try:
        with path.open("rb") as file:
            content = DataUnpickler(file).load()
        if not isinstance(content, dict):
            raise ValueError(f"holds a {type(content).__name__}")
        content = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        pixels, labels = as_array(content["data"]), content["labels"]
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
            raise ValueError("labels are not a list of numbers from 0 to 9")
        if pixels.shape != (len(labels), 3072):
            raise ValueError(f"data has shape {pixels.shape} for {len(labels)} labels")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); wanted: {WANTED}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        reason = f"no entry {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UserError(f"{path}: not a CIFAR-10 batch file, or a damaged one ({reason}); extract the archive anew") from error
    return torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), torch.tensor(labels, dtype=torch.int64)


class Recorded:
    """Stands for a numpy object while a pickle is read: keeps what the object would be made from, and makes nothing."""

    kind: str

    def __init__(self, *arguments: Any):
        self.arguments, self.state = arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class DataUnpickler(pickle.Unpickler):
    """Reads pickles of plain containers and numpy arrays without running anything that the file names.

    The batch files are pickles, which may call any function. Here every name but numpy's few for arrays is refused, and those
    only record their arguments (even numpy's own constructors can be fed states that break memory safety).
    """

    ARRAY_NAMES = {
        (f"numpy.{core}.{name}") for core in ("core", "_core") for name in ("multiarray._reconstruct", "numeric._frombuffer")
    } | {"numpy.ndarray", "numpy.dtype"}

    def __init__(self, file: Any):
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in self.ARRAY_NAMES:
            return type("Recorded", (Recorded,), {"kind": name})  # a new class each time: a file cannot alter ours
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in old protocols
            return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays, numbers and text are allowed")


def as_array(recorded: Any) -> np.ndarray:
    """The uint8 array that :class:`DataUnpickler` recorded; ValueError if it is anything else."""
    kind = getattr(recorded, "kind", None)
    if kind == "_reconstruct":
        _, shape, dtype, fortran, buffer = recorded.state
    elif kind == "_frombuffer":
        buffer, dtype, shape, order = recorded.arguments
        fortran = order != "C"
    else:
        raise ValueError("data is not an array")
    if getattr(dtype, "kind", None) != "dtype" or dtype.arguments[0] not in ("u1", b"u1") or fortran:
        raise ValueError("data is not an array of bytes in C order")
    return np.frombuffer(buffer, dtype=np.uint8).reshape(shape)


def _resize(images: Tensor, resolution: int) -> Tensor:
    check_memory(len(images), resolution)
    resized = torch.empty(len(images), resolution, resolution, 3, dtype=torch.uint8)
    for image, out in zip(images.permute(0, 2, 3, 1).numpy(), resized.numpy(), strict=True):
        out[:] = np.asarray(resize_square(Image.fromarray(image), resolution))
    return resized.permute(0, 3, 1, 2).contiguous()
