"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 50,000 training images of 32 x 32 in 10 or 100 classes each.

Read from torchvision's own files (the extracted ``cifar-10-batches-py`` or ``cifar-100-python`` folder), a zip or a folder of
images, or downloaded by torchvision.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data import archive, arrays, folder
from data.collection import Collection
from data.decode import EXTENSIONS
from data.download import TIMEOUT, downloaded
from data.options import DatasetOptions, location
from data.store import builder
from errors import UserError

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASS_NAMES_100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
    maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail
    snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
    tulip turtle wardrobe whale willow_tree wolf woman worm""".split()
)
FOLDER = "cifar-10-batches-py"
__all__ = ["TIMEOUT", "build", "collect"]


@dataclass(frozen=True)
class Form:
    """Where torchvision's files lie and what they hold: batch files of a split, and the entry with the labels."""

    title: str
    kind: str  # torchvision's class
    folder: str
    batches: dict[str, list[str]]
    labels: str
    class_names: tuple[str, ...]

    @property
    def wanted(self) -> str:
        """What a path may be."""
        return f"the extracted {self.folder} folder, or a {archive.FORMAT}"


FORMS = {
    "cifar10": Form("CIFAR-10", "CIFAR10", FOLDER, {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]},
                    "labels", CLASS_NAMES),
    "cifar100": Form("CIFAR-100", "CIFAR100", "cifar-100-python", {"train": ["train"], "test": ["test"]}, "fine_labels",
                     CLASS_NAMES_100),
}  # fmt: skip


def collect(options: DatasetOptions, split: str = "train") -> Collection:
    """The images of one ``split`` ("train" or "test"; zips and folders of images have none and are read whole), with labels.

    UserError if ``options.path`` is of no known form, or if it is unset and nothing can be downloaded.
    """
    form = FORMS[options.name]
    if options.path is None:
        shown = f"dataset={options.name}"
        place = download(form, Path(options.download_dir).expanduser())
    else:
        shown = f"dataset.path={options.path}"
        path = location(options, form.wanted)
        place = find_folder(path, form) if path.is_dir() else None
        if place is None:
            if path.is_dir() and not any(name.lower().endswith(EXTENSIONS) for name, _, _ in folder.walk(path)):
                raise UserError(f"{shown} holds no {form.batches['train'][0]}; wanted: {form.wanted}, or a folder of images")
            found = folder.collect(options, form.wanted, len(form.class_names), form.class_names)
            if split != "train":
                raise UserError(f"{shown}: these images are one set, without a {split} part; give its own path")
            return found
    files = [place / name for name in form.batches[split]]

    def read() -> tuple[np.ndarray, np.ndarray]:
        parts = [read_batch(file, form) for file in files]
        return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])

    return arrays.collection(shown, form.title, files, read, form.class_names)


build = builder(collect)


def find_folder(path: Path, form: Form) -> Path | None:
    """The folder with the batch files: ``path`` itself or the standard one inside it; None if neither has them."""
    first = form.batches["train"][0]
    return next((place for place in (path, path / form.folder) if (place / first).is_file()), None)


def download(form: Form, root: Path) -> Path:
    """The batch folder under ``root``, from an earlier download or a new one, checked (MD5)."""

    def fill(temporary: Path) -> None:
        import torchvision.datasets  # a second that the other forms need not pay
        from torchvision.datasets.utils import check_integrity, extract_archive

        kind = getattr(torchvision.datasets, form.kind)
        ready = root / kind.filename
        if check_integrity(ready, kind.tgz_md5):
            extract_archive(ready, temporary)
        else:
            kind(temporary, download=True)

    def complete(target: Path) -> bool:
        return all((target / name).is_file() for names in form.batches.values() for name in names)

    return downloaded(form.title, root, form.folder, complete, fill, f"set dataset.path to {form.wanted}")


def read_batch(path: Path, form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) uint8 and labels (n,) int64 of one batch file; UserError if it is missing or not one."""
    classes = len(form.class_names)
    try:
        with path.open("rb") as file:
            content = DataUnpickler(file).load()
        if not isinstance(content, dict):
            raise ValueError(f"holds a {type(content).__name__}")
        content = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        pixels, labels = as_array(content["data"]), content[form.labels]
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < classes for label in labels):
            raise ValueError(f"labels are not a list of numbers from 0 to {classes - 1}")
        if pixels.shape != (len(labels), 3072):
            raise ValueError(f"data has shape {pixels.shape} for {len(labels)} labels")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); wanted: {form.wanted}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        reason = f"no entry {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        what = f"not a {form.title} batch file, or a damaged one"
        raise UserError(f"{path}: {what} ({reason}); extract the archive anew") from error
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), np.array(labels, dtype=np.int64)


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
