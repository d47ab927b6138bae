"""Geometric augmentation by an affine map, band-limited: resampled at twice the resolution between two wavelet filters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from data.augment.filters import RING, downsampling, upsampling


class InverseMap:
    """n affine maps from positions in the output to positions in the input, both in pixels from the image's centre.

    Starts as the identity; each call appends one more transform of the image, given by (n,) values, by undoing it first.
    """

    def __init__(self, n: int, device: torch.device, dtype: torch.dtype):
        self.linear = torch.eye(2, device=device, dtype=dtype).repeat(n, 1, 1)
        self.offset = torch.zeros(n, 2, device=device, dtype=dtype)

    def scale(self, x: Tensor, y: Tensor) -> None:
        """Enlarge ``x`` and ``y`` times; negative values mirror."""
        self.linear = self.linear / torch.stack([x, y], dim=1)[:, None]

    def rotate(self, angle: Tensor) -> None:
        """Turn by ``angle`` radians, counter-clockwise as displayed (y points down)."""
        cos, sin = angle.cos(), angle.sin()
        turn = torch.stack([torch.stack([cos, -sin], dim=1), torch.stack([sin, cos], dim=1)], dim=1)
        self.linear = (self.linear[..., None] * turn[:, None]).sum(dim=2)

    def translate(self, x: Tensor, y: Tensor) -> None:
        """Move by ``x`` pixels to the right and ``y`` down."""
        self.offset = self.offset - (self.linear * torch.stack([x, y], dim=1)[:, None]).sum(dim=2)


def warp(images: Tensor, to_input: InverseMap) -> Tensor:
    """(n, c, h, w) -> (n, c, h, w): each image under its own map, differentiable twice with respect to the images.

    Beyond its borders an image goes on as its mirror image for w - 1 (h - 1) pixels, then black (zero). That margin is the
    same whatever the maps, so an image's result does not depend on the rest of the batch.
    """
    height, width = images.shape[2:]
    kind = {"device": images.device, "dtype": images.dtype}
    fine = _separable(images, upsampling(height, **kind), upsampling(width, **kind))

    # pixel k of the fine output lies at (k - size - 2 RING + 1) / 2 pixels from the centre: sym6 delays by half a fine pixel
    x, y = ((torch.arange(2 * (size + 2 * RING), **kind) - size - 2 * RING + 1) / 2 for size in (width, height))
    a, b = to_input.linear[..., None, None], to_input.offset[..., None, None]
    source_x = a[:, 0, 0] * x + a[:, 0, 1] * y[:, None] + b[:, 0]
    source_y = a[:, 1, 0] * x + a[:, 1, 1] * y[:, None] + b[:, 1]
    grid = torch.stack([(2 * source_x - 0.5) / (fine.shape[3] / 2), (2 * source_y - 0.5) / (fine.shape[2] / 2)], dim=3)
    fine = F.grid_sample(fine, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return _separable(fine, downsampling(height, **kind), downsampling(width, **kind))


def _separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``rows`` acts on the vertical axis, ``columns`` on the horizontal one: rows @ image @ columns^T."""
    return rows @ (images @ columns.T)
