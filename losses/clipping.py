"""Weight clipping (arXiv:1701.07875)."""

from __future__ import annotations

import math

import torch
from torch import nn


@torch.no_grad()
def clip_weights_(module: nn.Module, bound: float) -> None:
    """Bring every parameter of ``module`` into [-bound, bound], in place (arXiv:1701.07875, algorithm 1).

    Buffers stay as they are. ValueError unless 0 < bound < infinity.
    """
    if not 0 < bound < math.inf:
        raise ValueError(f"the bound of weight clipping must be positive and finite, found {bound}")
    for parameter in module.parameters():
        parameter.clamp_(-bound, bound)
