"""Differentiable augmentation, DiffAugment (arXiv:2006.10738)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from data.augment.ada import Draw

POLICIES = ("color", "translation", "cutout")


@dataclass(frozen=True)
class DiffAugmentOptions:
    """Options of ``augment=diffaugment``. Every transform of the policy is applied to every image.

    policy             any of color, translation, cutout, applied in this order.
    translation_ratio  largest shift, in image sizes, rounded to pixels.
    cutout_ratio       side of the blackened rectangle, in image sizes, rounded to pixels.
    """

    policy: list[str] = field(default_factory=lambda: list(POLICIES))
    translation_ratio: float = 0.125
    cutout_ratio: float = 0.5

    def __post_init__(self) -> None:
        if not self.policy or set(self.policy) - set(POLICIES) or len(set(self.policy)) < len(self.policy):
            raise ValueError(f"policy={list(self.policy)}: a list of one or more of {', '.join(POLICIES)} is expected")
        for name in ("translation_ratio", "cutout_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0, at most 1")

    def build(self, channels: int) -> DiffAugment:
        """The pipe; any number of channels."""
        return DiffAugment(self)


class DiffAugment:
    """images (n, c, h, w) in [-1, 1] -> images of the same shape and dtype, each augmented by itself.

    Differentiable twice with respect to the images. The paper has no strength: every image is augmented always.
    """

    uses_strength: ClassVar[bool] = False

    def __init__(self, options: DiffAugmentOptions):
        self.options = options

    def __call__(self, images: Tensor, draw: Draw, strength: float = 1.0) -> Tensor:
        """Augment; ``strength`` is there for the pipes' common signature and changes nothing."""
        if images.ndim != 4:
            raise ValueError(f"images (n, c, h, w) expected, found {tuple(images.shape)}")
        x = images.to(torch.promote_types(images.dtype, torch.float32))
        for name in POLICIES:
            if name in self.options.policy:
                x = getattr(self, name)(x, draw)
        return x.to(images.dtype)

    def color(self, x: Tensor, draw: Draw) -> Tensor:
        """Brightness by U(-1/2, 1/2), then saturation by a factor of U(0, 2), then contrast by one of U(1/2, 3/2)."""
        amounts = draw("color", (3,), "uniform").to(x.dtype)
        brightness, saturation, contrast = amounts[..., None, None, None].unbind(1)
        x = x + (brightness - 0.5)
        gray = x.mean(dim=1, keepdim=True)
        x = gray + 2 * saturation * (x - gray)
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        return mean + (0.5 + contrast) * (x - mean)

    def translation(self, x: Tensor, draw: Draw) -> Tensor:
        """Shift by whole pixels, uniformly up to the largest shift on each axis; zeros move in."""
        for dim, name in ((2, "translation_y"), (3, "translation_x")):
            size = x.shape[dim]
            largest = _pixels(self.options.translation_ratio, size)
            start = draw(name, (1, 1, 1), "integer", 2 * largest + 1)  # ``largest`` is no shift
            index = start + torch.arange(size, device=x.device).view([-1 if d == dim else 1 for d in range(4)])
            padded = F.pad(x, (0, 0, largest, largest) if dim == 2 else (largest, largest))
            x = padded.gather(dim, index.expand(x.shape))
        return x

    def cutout(self, x: Tensor, draw: Draw) -> Tensor:
        """Zeros in a rectangle whose centre is uniform in the image; what sticks out is cut off."""
        inside = torch.ones((), dtype=torch.bool, device=x.device)
        for dim, name in ((2, "cutout_y"), (3, "cutout_x")):
            size = x.shape[dim]
            side = _pixels(self.options.cutout_ratio, size)
            center = draw(name, (1, 1, 1), "integer", size + 1 - side % 2)  # a side of even length has its centre between pixels
            offset = torch.arange(size, device=x.device).view([-1 if d == dim else 1 for d in range(4)]) - center + side // 2
            inside = inside & (offset >= 0) & (offset < side)
        return x.masked_fill(inside, 0)


def _pixels(ratio: float, size: int) -> int:
    return int(ratio * size + 0.5)
