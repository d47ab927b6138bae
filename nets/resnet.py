"""The residual networks of WGAN-GP: Improved training of Wasserstein GANs (arXiv:1704.00028, appendix F), for any resolution.

Blocks of two 3x3 convolutions, each behind a norm and a ReLU; ``width`` channels everywhere. Biases are zero and weights
uniform: variance 4 / (fan_in + fan_out) in the blocks' branches, where ReLUs follow, 2 / (fan_in + fan_out) elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from nets.dcgan import attend, check_attention, stages
from nets.discriminator import Discriminator
from nets.generator import Generator
from nets.layers import Conv2d, MinibatchStddev, StochasticDepth, linear_survival, needs_bias
from nets.layers import norm as make_norm
from nets.resize import downsample as make_downsample
from nets.resize import upsample as make_upsample
from nets.shortcut import shortcut as make_shortcut


def _glorot(module: nn.Module, gain: float = 1.0) -> nn.Module:
    """Uniform weights of variance gain^2 * 2 / (fan_in + fan_out), zero biases, in every layer of ``module``; returns it."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def _he(module: nn.Module) -> nn.Module:
    return _glorot(module, math.sqrt(2))


class UpBlock(nn.Module):
    """norm, ReLU, upsample + convolution, norm, ReLU, 3x3 convolution; around them the shortcut. (n, c, h, w) -> (n, c, 2h, 2w).

    An identity shortcut doubles the pixels behind a 1x1 convolution (of the small map: the same result at a quarter of the
    cost); the gated ones have convolutions of their own.
    """

    def __init__(self, width: int, upsample: str, shortcut: str, norm: str, survival: float):
        super().__init__()
        bias = needs_bias(norm)
        self.norm1, self.norm2 = make_norm(norm, width), make_norm(norm, width)
        self.conv1 = _he(make_upsample(upsample, width, width, bias=bias))
        self.conv2 = _he(Conv2d(width, width, 3, padding=1))
        self.depth = StochasticDepth(survival)
        self.project = _glorot(Conv2d(width, width, 1)) if shortcut == "identity" else nn.Identity()
        self.shortcut = _glorot(make_shortcut(shortcut, width, width, scale=2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        y = self.conv2(F.relu(self.norm2(y), inplace=True))
        return self.shortcut(self.project(x), self.depth(y))


class DownBlock(nn.Module):
    """A residual block of D; (n, c_in, h, w) -> (n, width, h / 2, w / 2), or h and w kept if ``downsample`` is None.

    norm, ReLU, 3x3 convolution, norm, ReLU, convolution + downsample. The first block sees the image itself, without a norm and
    a ReLU before its first convolution, and without any norm. The shortcut has a 1x1 convolution where size or width change.
    """

    def __init__(self, in_channels: int, width: int, downsample: str | None, norm: str, survival: float, first: bool = False):
        super().__init__()
        kind = "none" if first else norm
        inner = width if first else in_channels
        self.first = first
        self.norm1, self.norm2 = make_norm(kind, in_channels), make_norm(kind, inner)
        self.conv1 = _he(Conv2d(in_channels, inner, 3, padding=1, bias=needs_bias(kind)))
        if downsample is None:
            self.conv2 = _he(Conv2d(inner, width, 3, padding=1))
        else:
            self.conv2 = _he(make_downsample(downsample, inner, width))
        self.depth = StochasticDepth(survival)
        self.pool = nn.Identity() if downsample is None else nn.AvgPool2d(2)
        same = downsample is None and in_channels == width
        self.project = nn.Identity() if same else _glorot(Conv2d(in_channels, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.first else F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(y)), inplace=True))
        return self.project(self.pool(x)) + self.depth(y)


class ResNetGenerator(Generator):
    """Latents (n, z_dim) [and labels (n,)] -> images (n, channels, resolution, resolution) in (-1, 1).

    A linear map to ``width`` channels of base x base, a block for every doubling, norm, ReLU, 3x3 convolution, tanh.

    upsample    of nets.resize.UPSAMPLES, for each block's first convolution.
    shortcut    of nets.shortcut.SHORTCUTS; the paper's is the identity.
    norm        of nets.layers.NORMS; a convolution has a bias only where the norm does not take it away again.
    attention   sizes in pixels of the maps that self-attention follows.
    survival    stochastic depth of the blocks with shortcut="identity": the survival falls linearly from 1 to this.

    ValueError for a resolution out of reach, for attention without its map, for ``survival`` < 1 without a residual block.
    """

    def __init__(
        self,
        z_dim: int,
        width: int,
        resolution: int,
        channels: int,
        *,
        classes: int = 0,
        embedding_dim: int = 64,
        upsample: str = "resize",
        shortcut: str = "identity",
        norm: str = "batch",
        attention: Sequence[int] = (),
        survival: float = 1.0,
    ):
        super().__init__(z_dim, resolution, channels, classes, embedding_dim)
        base, doublings = stages(resolution)
        sizes = [base * 2**i for i in range(doublings + 1)]
        check_attention(attention, sizes)
        if survival < 1 and shortcut != "identity":
            raise ValueError(f"survival={survival} needs residual blocks: shortcut=identity, found shortcut={shortcut}")
        self.first = nn.Sequential(_glorot(nn.Linear(self.input_dim, width * base**2)), nn.Unflatten(1, (width, base, base)))
        blocks = [attend(width, base, attention)]
        for size, chance in zip(sizes[1:], linear_survival(survival, doublings)):
            blocks += [UpBlock(width, upsample, shortcut, norm, chance), attend(width, size, attention)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = make_norm(norm, width)
        self.output = nn.Sequential(_glorot(Conv2d(width, channels, 3, padding=1)), nn.Tanh())

    def body(self, z: Tensor) -> Tensor:
        return F.relu(self.norm(self.blocks(self.first(z))))


class ResNetDiscriminator(Discriminator):
    """Images (n, channels, resolution, resolution) [and labels (n,)] -> logits (n,); features (n, width).

    Blocks that halve the map down to 2 base x 2 base, two blocks of that size, ReLU, mean over the map, linear.

    width             channels of every block.
    classes, conditioning, embedding_dim, class_head: see nets.discriminator.Discriminator.
    downsample        of nets.resize.DOWNSAMPLES, for each halving block's last convolution.
    norm              of nets.layers.NORMS, in every block but the first: the paper has "none" or "layer".
    attention         sizes in pixels of the maps that self-attention follows (the first map of that size).
    minibatch_stddev  the spread within groups of four samples as one more feature (arXiv:1710.10196).
    dropout           probability after every block but the first.
    survival          stochastic depth: the survival falls linearly from 1 to this.

    ValueError for a resolution out of reach and for attention without its map.
    """

    def __init__(
        self,
        width: int,
        resolution: int,
        channels: int,
        *,
        classes: int = 0,
        conditioning: str = "none",
        embedding_dim: int = 64,
        class_head: bool = False,
        downsample: str = "avg_pool",
        norm: str = "none",
        attention: Sequence[int] = (),
        minibatch_stddev: bool = False,
        dropout: float = 0.0,
        survival: float = 1.0,
    ):
        super().__init__(
            resolution, channels, classes=classes, conditioning=conditioning, embedding_dim=embedding_dim, class_head=class_head
        )
        _, doublings = stages(resolution)
        halvings = max(1, doublings - 1)
        sizes = [resolution // 2 ** (i + 1) for i in range(halvings)]
        check_attention(attention, sizes)
        survivals = linear_survival(survival, halvings + 2)
        blocks: list[nn.Module] = []
        for i, chance in enumerate(survivals):
            inputs, kind = width if i else channels + self.vector_dim, downsample if i < halvings else None
            blocks.append(DownBlock(inputs, width, kind, norm, chance, first=i == 0))
            if i:
                blocks.append(nn.Dropout(dropout))
            if i < halvings:
                blocks.append(attend(width, sizes[i], attention))
        self.blocks = nn.Sequential(*blocks)
        self.minibatch_stddev = MinibatchStddev() if minibatch_stddev else nn.Identity()
        self.add_heads(width + minibatch_stddev)
        for head in (self.head, self.class_head):
            if head is not None:
                _glorot(head)

    def body(self, x: Tensor) -> Tensor:
        return self.minibatch_stddev(F.relu(self.blocks(x))).mean((2, 3))
