"""Building blocks of R3GAN (arXiv:2501.05441), each plain enough to be used elsewhere.

Parameters are kept in fp32; every layer computes in the dtype of its input, casting its own weights, and needs no autocast.
Convolutions and linear maps are drawn from N(0, gain^2 / fan_in) and have no bias of their own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nets.convolution import conv2d, leaky_relu_

LEAKY_RELU_SLOPE = 0.2
LEAKY_RELU_GAIN = math.sqrt(2 / (1 + LEAKY_RELU_SLOPE**2))  # keeps the second moment (arXiv:1502.01852)


class Convolution(nn.Module):
    """k x k convolution (odd k, same size), weight (c_out, c_in / groups, k, k) ~ N(0, gain^2 / fan_in).

    (n, c_in, h, w) -> (n, c_out, h, w). ``bias``: a zero-initialised bias (c_out,). ValueError if groups divide neither side.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 1, groups: int = 1, gain: float = 1.0, bias: bool = False
    ):
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{groups} groups do not divide {in_channels} input and {out_channels} output channels")
        self.groups, self.padding = groups, kernel_size // 2
        shape = (out_channels, in_channels // groups, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.randn(shape) * (gain / math.sqrt(math.prod(shape[1:]))))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return conv2d(x, self.weight.to(x.dtype), bias, padding=self.padding, groups=self.groups)


class ResidualBlock(nn.Module):
    """x + 1x1(act(grouped 3x3(act(1x1(x))))), act = biased LeakyReLU 0.2, an inverted bottleneck without normalisation.

    (n, width, h, w) -> the same. ``expansion * width`` channels inside, split into ``cardinality`` groups in the 3x3.
    Fix-up initialisation (arXiv:1901.09321): with ``depth`` blocks in the network and three layers in a block, the first two
    have gain * depth^(-1/4) and the last is zero, so that a fresh network's size does not grow with depth.
    """

    def __init__(self, width: int, cardinality: int, expansion: int, depth: int):
        super().__init__()
        inner, gain = width * expansion, LEAKY_RELU_GAIN * depth**-0.25
        self.expand = Convolution(width, inner, 1, gain=gain, bias=True)
        self.mix = Convolution(inner, inner, 3, cardinality, gain=gain, bias=True)
        self.project = Convolution(inner, width, 1, gain=0.0)

    def forward(self, x: Tensor) -> Tensor:
        y = leaky_relu_(self.expand(x), LEAKY_RELU_SLOPE)
        y = leaky_relu_(self.mix(y), LEAKY_RELU_SLOPE)
        return x + self.project(y)


class Linear(nn.Module):
    """(n, in_features) -> (n, out_features) without bias, weight ~ N(0, 1 / in_features)."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features) / math.sqrt(in_features))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype))


class GenerativeBasis(nn.Module):
    """Latents (n, features) -> (n, width, 4, 4): a learnt 4x4 pattern for each channel, scaled by a linear map of the latent."""

    def __init__(self, features: int, width: int):
        super().__init__()
        self.basis = nn.Parameter(torch.randn(1, width, 4, 4))  # 4-d, so that it takes part in channels_last
        self.linear = Linear(features, width)

    def forward(self, z: Tensor) -> Tensor:
        return self.linear(z)[:, :, None, None] * self.basis.to(z.dtype)


class DiscriminativeBasis(nn.Module):
    """(n, width, 4, 4) -> (n, features): each channel's inner product with a learnt 4x4 pattern, then a linear map."""

    def __init__(self, width: int, features: int):
        super().__init__()
        self.basis = nn.Parameter(torch.randn(1, width, 4, 4) / 4)
        self.linear = Linear(width, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear((x * self.basis.to(x.dtype)).sum((2, 3)))


class ClassEmbedding(nn.Module):
    """Labels (n,) int64 in [0, classes) -> (n, features), rows ~ N(0, std^2).

    ValueError for labels that are missing, not integers, or not (n,). Values are checked on the CPU and, elsewhere, in eval
    mode only: reading them back would stall a GPU in every training step.
    """

    def __init__(self, classes: int, features: int, std: float):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features) * std)

    def forward(self, labels: Tensor | None, n: int) -> Tensor:
        classes = len(self.weight)
        if labels is None:
            raise ValueError(f"a class-conditional network needs labels (n,) int64 in 0..{classes - 1}, found none")
        if labels.shape != (n,) or labels.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"labels must be ({n},) int64, found {tuple(labels.shape)} {labels.dtype}")
        if n and (labels.device.type == "cpu" or not self.training):
            low, high = labels.min().item(), labels.max().item()
            if low < 0 or high >= classes:
                raise ValueError(f"label {low if low < 0 else high} is outside 0..{classes - 1}")
        return nn.functional.embedding(labels, self.weight)
