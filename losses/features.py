"""Feature matching (arXiv:1606.03498)."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("squared", "l1")


def feature_matching(real: Tensor, fake: Tensor, kind: str = "squared") -> Tensor:
    """Distance of the mean features of two batches, a scalar in at least fp32 (arXiv:1606.03498, section 3.1).

    (n, ...) and (m, ...), alike but for n and m, at least one sample each and flattened per sample ->
    ||mean real - mean fake||_2^2 ("squared", the paper's) or ||mean real - mean fake||_1 ("l1"), sums over the features.
    The generator minimises it with features of a discriminator; give real features without a graph there. It couples the
    samples of a micro-batch. ValueError for other shapes or kinds.
    """
    if real.ndim < 2 or real.shape[1:] != fake.shape[1:] or not len(real) or not len(fake):
        raise ValueError(f"features must be (n, ...), alike but for n >= 1, found {tuple(real.shape)} and {tuple(fake.shape)}")
    if kind not in KINDS:
        raise ValueError(f"kind={kind} of feature matching is unknown, allowed: {', '.join(KINDS)}")
    # half precision has too few digits for the mean of a batch
    dtype = torch.promote_types(torch.promote_types(real.dtype, fake.dtype), torch.float32)
    difference = real.flatten(1).mean(0, dtype=dtype) - fake.flatten(1).mean(0, dtype=dtype)
    return (difference.square() if kind == "squared" else difference.abs()).sum()
