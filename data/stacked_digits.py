"""Three handwritten digits stacked as the channels of a colour image: 1,000 modes, of which a model may find some.

The Stacked MNIST of arXiv:1611.02163 (also 1705.07761, 1712.04086) with scikit-learn's digits, which need no download. The
number whose digits are the channels is the mode; it is not given as a label.
"""

from __future__ import annotations

import torch

from data import digits
from data.options import DatasetOptions, refuse
from data.source import DataSource, Spec

COUNT, SEED, STACKED = 50_000, 0, 3
MODES = 10**STACKED


def build(options: DatasetOptions) -> DataSource:
    """50,000 images (50,000, 3, 16, 16) uint8, each channel a random one of the 1,797 digits; the same at every start.

    ``options.resolution`` other than 16 is made as by ``dataset=digits``.
    """
    refuse(options, "dataset=stacked_digits ships with scikit-learn", "path", "pad_to")
    single = digits.build(DatasetOptions("digits", resolution=options.resolution))
    which = chosen()
    images = single.images[:, 0][which.flatten()].view(COUNT, STACKED, *single.images.shape[2:])
    return DataSource(images, torch.full((COUNT,), -1), Spec("stacked_digits", single.spec.resolution, STACKED, 0))


def chosen() -> torch.Tensor:
    """(50,000, 3) int64: which of the 1,797 digits each channel of each image is."""
    return torch.randint(digits.COUNT, (COUNT, STACKED), generator=torch.Generator().manual_seed(SEED))
