"""The micro-batch that a phase's loss sees (the class behind the ``Batch`` protocol of gans/base.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from training.draws import Draws

Augment = Callable[[Tensor, Callable[..., Tensor], float], Tensor]
"""(images, draw, strength) -> images, as the pipes of data.augment."""


class MicroBatch:
    """Samples ``first`` … ``last - 1`` of a phase's global batch; see ``gans.base.Batch`` for the contract."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None,
        draws: Draws,
        first: int,
        last: int,
        shared: dict[str, Tensor],
        keep_graph: bool,
        grad_scale: float = 1.0,
        augment: Augment | None = None,
        augment_strength: float = 0.0,
        reseed: Callable[[str], None] | None = None,
    ):
        self.images, self.labels, self.shared, self.grad_scale = images, labels, shared, grad_scale
        self.left: dict[str, Tensor] = {}
        self.means: dict[str, Tensor] = {}
        self.joined: dict[str, Tensor] = {}
        self._draws, self._slice, self._keep_graph = draws, slice(first, last), keep_graph
        self._augment, self._strength, self._reseed = augment, augment_strength, reseed

    def __len__(self) -> int:
        return self._slice.stop - self._slice.start

    def draw(self, purpose: str, shape: int | tuple[int, ...] = (), kind: str = "normal", high: int = 0) -> Tensor:
        return self._draws.draw(purpose, shape, kind, high)[self._slice].to(self.images.device, non_blocking=True)

    def augment(self, images: Tensor, purpose: str) -> Tensor:
        if self._augment is None:
            return images
        return self._augment(images, partial(self._draw_for, f"augment {purpose} "), self._strength)

    def _draw_for(self, prefix: str, what: str, *shape_kind: Any, **more: Any) -> Tensor:
        return self.draw(prefix + what, *shape_kind, **more)

    def reseed_layers(self, purpose: str) -> None:
        if self._reseed is not None:
            self._reseed(purpose)

    def share(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            self.left[name] = tensor if self._keep_graph else tensor.detach()

    def report(self, name: str, value: Tensor, reduce: str = "mean") -> None:
        value = value.detach()
        if reduce == "mean":
            if value.ndim and value.shape[0] != len(self):
                raise ValueError(f"report({name!r}): a scalar or ({len(self)}, …) expected, got {tuple(value.shape)}")
            self.means[name] = value.float().mean()
        elif reduce == "cat":
            if not value.ndim or value.shape[0] != len(self):
                raise ValueError(f"report({name!r}, reduce='cat'): ({len(self)}, …) expected, got {tuple(value.shape)}")
            self.joined[name] = value
        else:
            raise ValueError(f"report({name!r}): reduce is 'mean' or 'cat', got {reduce!r}")


def flip(images: Tensor, draws: Draws, where: slice) -> Tensor:
    """Mirror each image left to right with probability one half."""
    mirrored = draws.draw("xflip", (1, 1, 1), "uniform")[where].to(images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)
