"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, 10 classes, no download; for tests and first runs on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from data.decode import check_memory, resize_square
from data.options import DatasetOptions, refuse
from data.source import DataSource, Spec
from errors import UserError

COUNT = 1797
RESOLUTION = 16  # default: the smallest at which convolutional GANs have two stages to grow


def build(options: DatasetOptions) -> DataSource:
    """White strokes on black, gray, ``options.resolution`` pixels (default 16, native 8).

    The 17 levels are resized as floats and only then rounded to 8 bits, so that enlarged strokes are smooth.
    """
    if options.path is not None:
        raise UserError(f"dataset.path={options.path}: dataset=digits ships with scikit-learn and reads no file; leave it unset")
    refuse(options, "dataset=digits ships with scikit-learn", "pad_to")
    from sklearn.datasets import load_digits  # half a second that other datasets need not pay

    digits = load_digits()
    resolution = options.resolution or RESOLUTION
    check_memory(4 * len(digits.images), resolution)  # as floats of one channel, twice
    levels = (digits.images * (255 / 16)).astype(np.float32)
    resized = np.stack([np.asarray(resize_square(Image.fromarray(image), resolution)) for image in levels])
    images = torch.from_numpy(resized).round_().clamp_(0, 255).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    return DataSource(images, labels, Spec("digits", resolution, 1, 10, tuple("0123456789")))
