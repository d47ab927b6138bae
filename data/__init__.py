"""Data: from files to one uint8 store (or one of float points).

    source = data.build(DatasetOptions(name="digits"))
    images, labels = source.batch(torch.tensor([0, 1]))        # uint8, int64
    x = data.to_float(images)                                  # [-1, 1]

``python -m data.check PATH`` says what is wrong with files before they are trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from data import archive, celeba, cifar10, digits, folder, lsun, mnist, points, stacked_digits
from data.options import DatasetOptions
from data.source import DataSource, Spec, require, to_float, to_stored, to_uint8
from data.store import builder
from errors import UserError, nearest

__all__ = ["DATASETS", "DataSource", "DatasetOptions", "Spec", "build", "require", "to_float", "to_stored",
           "to_uint8"]  # fmt: skip


def _known(images: str, classes: int | None = None) -> Callable[[DatasetOptions], DataSource]:
    """A dataset that users bring themselves, as a zip or a folder; ``images`` says of what."""
    labels = ", with labels" if classes else ""
    return builder(partial(folder.collect, wanted=f"FILE.zip, a {archive.FORMAT} of {images}{labels}", classes=classes))


DATASETS: dict[str, Callable[..., DataSource]] = {
    "digits": digits.build,
    "stacked_digits": stacked_digits.build,
    **dict.fromkeys(points.GEOMETRIES, points.build),
    "folder": folder.build,
    "zip": archive.build,
    "mnist": mnist.build,
    "fashion_mnist": mnist.build,
    "cifar10": cifar10.build,
    "cifar100": cifar10.build,
    "celeba": celeba.build,
    "lsun": lsun.build,
    "ffhq64": _known("the 70,000 FFHQ images at 64x64"),
    "ffhq256": _known("the 70,000 FFHQ images at 256x256"),
    "imagenet32": _known("the 1,281,167 ImageNet training images at 32x32", classes=1000),
    "imagenet64": _known("the 1,281,167 ImageNet training images at 64x64", classes=1000),
}


def build(options: DatasetOptions, need_labels: bool | None = None) -> DataSource:
    """The dataset that ``options`` describe, on the CPU.

    need_labels: True refuses unlabelled data (UserError), False drops the labels (``spec.classes`` becomes 0), None takes the
    data as it is. Raises UserError, in one line, for anything wrong with the options or the files.
    """
    if options.name not in DATASETS:
        raise UserError(f"dataset.name={options.name}: no such dataset, {nearest(options.name, DATASETS)}")
    options.check()
    source = DATASETS[options.name](options)
    if need_labels and not source.spec.classes:
        raise UserError(
            f"dataset={options.name} has no labels and this model needs them: give a zip whose dataset.json has labels, "
            "or train an unconditional model"
        )
    return source.unlabelled() if need_labels is False else source
