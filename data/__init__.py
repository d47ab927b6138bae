"""Data: from files to one uint8 store.

    source = data.build(DatasetOptions(name="digits"))
    images, labels = source.batch(torch.tensor([0, 1]))        # uint8, int64
    x = data.to_float(images)                                  # [-1, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from data import archive, cifar10, digits
from data.options import DatasetOptions
from data.source import DataSource, Spec, require, to_float, to_uint8
from errors import UserError, nearest

__all__ = ["DATASETS", "DataSource", "DatasetOptions", "Spec", "build", "require", "to_float", "to_uint8"]


def _known(images: str, classes: int | None = None) -> Callable[[DatasetOptions], DataSource]:
    """A dataset that users turn into a zip themselves; ``images`` says of what."""
    labels = ", with labels" if classes else ""
    return partial(archive.build, wanted=f"FILE.zip, a {archive.FORMAT} of {images}{labels}", classes=classes)


DATASETS: dict[str, Callable[[DatasetOptions], DataSource]] = {
    "digits": digits.build,
    "cifar10": cifar10.build,
    "zip": archive.build,
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
    if options.resolution is not None and options.resolution < 1:
        raise UserError(f"dataset.resolution={options.resolution}: allowed: 1 or more pixels, or null for the native resolution")
    if options.workers < 0:
        raise UserError(f"dataset.workers={options.workers}: allowed: 0 (the calling thread) or more")
    source = DATASETS[options.name](options)
    if need_labels and not source.spec.classes:
        raise UserError(
            f"dataset={options.name} has no labels and this model needs them: give a zip whose dataset.json has labels, "
            "or train an unconditional model"
        )
    if need_labels is False and source.spec.classes:
        spec = Spec(source.spec.name, source.spec.resolution, source.spec.channels, classes=0)
        source = DataSource(source.images, torch.full_like(source.labels, -1), spec)
    return source
