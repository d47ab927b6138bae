"""Mixed precision that a network switches on for itself, one autocast region a forward pass."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn


class MixedPrecision(nn.Module):
    """A network whose inner layers may compute in another dtype than its parameters; what leaves it has the parameters' dtype.

    Autocast's cached casts of the weights live as long as the region, so that a region must not outlast an optimizer step:
    here it never outlasts one forward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner_dtype: torch.dtype | None = None

    def set_precision(self, dtype: torch.dtype | None) -> None:
        """Compute the inner layers in ``dtype`` from now on (None: in the parameters' dtype)."""
        self.inner_dtype = dtype

    def inner(self, x: Tensor) -> contextlib.AbstractContextManager:
        """The region of the inner layers, on the device of ``x``."""
        if self.inner_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(x.device.type, self.inner_dtype)

    def outer(self, x: Tensor) -> contextlib.AbstractContextManager:
        """The region of the layers that make images and logits: no autocast, whatever surrounds it."""
        return torch.autocast(x.device.type, enabled=False)

    @property
    def outer_dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return next(self.parameters()).dtype
