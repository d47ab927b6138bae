"""Layers that double or halve the resolution of a feature map and change its width, one convolution each."""

from __future__ import annotations

from torch import nn

from nets.layers import Conv2d
from nets.resample import Downsample, Upsample

UPSAMPLES = ("transposed", "resize", "pixel_shuffle", "fir")
DOWNSAMPLES = ("strided", "avg_pool", "fir")


def upsample(kind: str, in_channels: int, out_channels: int, bias: bool = True) -> nn.Module:
    """(n, in_channels, h, w) -> (n, out_channels, 2 h, 2 w). Borders are padded with zeros.

    transposed     4x4 transposed convolution of stride 2 (arXiv:1511.06434). Kernels overlap: checkerboard patterns at birth.
    resize         every pixel doubled, then a 3x3 convolution: no checkerboard (doi:10.23915/distill.00003).
    pixel_shuffle  3x3 convolution to 4 * out_channels, each group of four becoming a 2x2 square (arXiv:1609.05158).
    fir            binomial low-pass interpolation (arXiv:1912.04958), then a 3x3 convolution.

    ValueError for another kind.
    """
    if kind == "transposed":
        return nn.ConvTranspose2d(in_channels, out_channels, 4, 2, 1, bias=bias)
    if kind == "resize":
        return nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), Conv2d(in_channels, out_channels, 3, 1, 1, bias=bias))
    if kind == "pixel_shuffle":
        return nn.Sequential(Conv2d(in_channels, 4 * out_channels, 3, 1, 1, bias=bias), nn.PixelShuffle(2))
    if kind == "fir":
        return nn.Sequential(Upsample(), Conv2d(in_channels, out_channels, 3, 1, 1, bias=bias))
    raise ValueError(f"unknown upsample {kind!r}, allowed: {', '.join(UPSAMPLES)}")


def downsample(kind: str, in_channels: int, out_channels: int, bias: bool = True) -> nn.Module:
    """(n, in_channels, h, w) -> (n, out_channels, h / 2, w / 2), h and w even. Borders are padded with zeros.

    strided   4x4 convolution of stride 2 (arXiv:1511.06434).
    avg_pool  3x3 convolution, then the mean of each 2x2 square (arXiv:1704.00028).
    fir       3x3 convolution, then a binomial low-pass filter and every second pixel (arXiv:1904.11486).

    ValueError for another kind.
    """
    if kind == "strided":
        return Conv2d(in_channels, out_channels, 4, 2, 1, bias=bias)
    if kind == "avg_pool":
        return nn.Sequential(Conv2d(in_channels, out_channels, 3, 1, 1, bias=bias), nn.AvgPool2d(2))
    if kind == "fir":
        return nn.Sequential(Conv2d(in_channels, out_channels, 3, 1, 1, bias=bias), Downsample())
    raise ValueError(f"unknown downsample {kind!r}, allowed: {', '.join(DOWNSAMPLES)}")
