"""How a block's input joins the block's feature: the gated shortcut of arXiv:2201.11351 and what it is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.layers import Conv2d

SHORTCUTS = ("none", "identity", "gated", "egs")


class _Shortcut(nn.Module):
    """``f_i`` (n, in_channels, H / scale, W / scale), ``f_c`` (n, channels, H, W) -> (n, channels, H, W)."""

    def __init__(self, scale: int):
        super().__init__()
        self.scale = scale

    def resample(self, x: Tensor) -> Tensor:
        return x if self.scale == 1 else F.interpolate(x, scale_factor=self.scale, mode="nearest")


class NoShortcut(_Shortcut):
    """f_c: the block's input goes only through the block."""

    def __init__(self, in_channels: int, channels: int, scale: int = 1):
        super().__init__(scale)

    def forward(self, f_i: Tensor, f_c: Tensor) -> Tensor:
        return f_c


class IdentityShortcut(_Shortcut):
    """f_i + f_c (arXiv:1512.03385), with a 1x1 convolution of f_i if the widths differ."""

    def __init__(self, in_channels: int, channels: int, scale: int = 1):
        super().__init__(scale)
        self.project = nn.Identity() if in_channels == channels else Conv2d(in_channels, channels, 1)

    def forward(self, f_i: Tensor, f_c: Tensor) -> Tensor:
        return self.resample(self.project(f_i)) + f_c  # a 1x1 convolution before doubling pixels: the same at less cost


class GatedShortcut(_Shortcut):
    """conv(f_g * f_c + (1 - f_g) * f_r), f_g = sigmoid(conv([f_c, f_i])), f_r = conv([f_c, f_i]), all 3x3 (arXiv:2201.11351).

    f_g gates between the block's feature and a refinement of both; [·, ·] stacks channels.
    """

    def __init__(self, in_channels: int, channels: int, scale: int = 1):
        super().__init__(scale)
        self.gate = Conv2d(channels + in_channels, channels, 3, 1, 1)
        self.refine = Conv2d(channels + in_channels, channels, 3, 1, 1)
        self.output = Conv2d(channels, channels, 3, 1, 1)

    def forward(self, f_i: Tensor, f_c: Tensor) -> Tensor:
        both = torch.cat([f_c, self.resample(f_i)], dim=1)
        f_g = self.gate(both).sigmoid()
        return self.output(f_g * f_c + (1 - f_g) * self.refine(both))


class EGSShortcut(_Shortcut):
    """f_g * f_i + (1 - f_g) * f_c with the gate of :class:`GatedShortcut` and without its refinement, its foil.

    A 1x1 convolution of f_i if the widths differ.
    """

    def __init__(self, in_channels: int, channels: int, scale: int = 1):
        super().__init__(scale)
        self.gate = Conv2d(channels + in_channels, channels, 3, 1, 1)
        self.project = nn.Identity() if in_channels == channels else Conv2d(in_channels, channels, 1)

    def forward(self, f_i: Tensor, f_c: Tensor) -> Tensor:
        f_i = self.resample(f_i)
        f_g = self.gate(torch.cat([f_c, f_i], dim=1)).sigmoid()
        return f_g * self.project(f_i) + (1 - f_g) * f_c


_CLASSES = {"none": NoShortcut, "identity": IdentityShortcut, "gated": GatedShortcut, "egs": EGSShortcut}


def shortcut(kind: str, in_channels: int, channels: int, scale: int = 1) -> nn.Module:
    """A module (f_i, f_c) -> (n, channels, H, W) that joins a block's input f_i and its feature f_c (see the classes).

    f_i (n, in_channels, H / scale, W / scale) is resampled to f_c's size by repeating pixels; f_c (n, channels, H, W).
    ValueError for a kind outside SHORTCUTS.
    """
    if kind not in _CLASSES:
        raise ValueError(f"unknown shortcut {kind!r}, allowed: {', '.join(SHORTCUTS)}")
    return _CLASSES[kind](in_channels, channels, scale)
