"""The networks of DCGAN: Unsupervised representation learning with deep convolutional generative adversarial networks
(arXiv:1511.06434).

Every stage halves or doubles the map and doubles or halves its channels: ``width`` channels at half the resolution, twice as
many at each smaller size, down to a map of base x base. Between a vector and that map lies one base x base convolution.
At 64 pixels with the defaults these are the networks of pytorch/examples (dcgan).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from nets.blocks import LEAKY_RELU_SLOPE
from nets.discriminator import Discriminator
from nets.generator import Generator
from nets.initialise import dcgan_
from nets.layers import MinibatchStddev, SelfAttention, StochasticDepth, linear_survival, needs_bias
from nets.layers import norm as make_norm
from nets.resize import downsample as make_downsample
from nets.resize import upsample as make_upsample
from nets.shortcut import shortcut as make_shortcut


def stages(resolution: int) -> tuple[int, int]:
    """(base, doublings): resolution = base * 2^doublings with base 4..7 and at least one doubling; ValueError otherwise."""
    base, doublings = resolution, 0
    while base > 7 and base % 2 == 0:
        base, doublings = base // 2, doublings + 1
    if not 4 <= base <= 7 or not doublings:
        raise ValueError(
            f"resolution {resolution} is not 4, 5, 6 or 7 doubled once or more, which is what stages of stride 2 reach"
        )
    return base, doublings


def attend(channels: int, size: int, attention: Sequence[int]) -> nn.Module:
    """A self-attention block if a map of ``size`` pixels is among ``attention``, else nothing."""
    return SelfAttention(channels) if size in attention else nn.Identity()


def check_attention(attention: Sequence[int], sizes: Sequence[int]) -> None:
    """ValueError for a size in ``attention`` at which the network has no feature map."""
    for size in attention:
        if size not in sizes:
            raise ValueError(f"no feature map of {size} pixels to attend over; this network has {', '.join(map(str, sizes))}")


class GeneratorStage(nn.Module):
    """resize, norm, ReLU; then the shortcut around these; then self-attention. (n, c_in, h, w) -> (n, c_out, h', w').

    ``resize`` leads to a map of ``size`` pixels. ``shortcut``: how f_i, the stage's input of half that size, joins the result.
    ``survival``: of the branch beside an identity shortcut.
    """

    def __init__(
        self,
        resize: nn.Module,
        in_channels: int,
        channels: int,
        size: int,
        shortcut: str,
        norm: str,
        attention: Sequence[int],
        survival: float,
    ):
        super().__init__()
        self.resize, self.norm, self.activation = resize, make_norm(norm, channels), nn.ReLU(inplace=True)
        self.depth = StochasticDepth(survival)
        self.shortcut = make_shortcut(shortcut, in_channels, channels, scale=2)
        self.attention = attend(channels, size, attention)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm(self.resize(x)))
        return self.attention(self.shortcut(x, self.depth(y)))


class DCGANGenerator(Generator):
    """Latents (n, z_dim) [and labels (n,)] -> images (n, channels, resolution, resolution) in (-1, 1).

    width       channels at half the resolution.
    upsample    of nets.resize.UPSAMPLES, in every stage and in the last layer, which makes the image.
    shortcut    of nets.shortcut.SHORTCUTS, around every stage but the first, which has no map to start from.
    norm        of nets.layers.NORMS; a convolution has a bias only where the norm does not take it away again.
    attention   sizes in pixels of the maps that self-attention follows.
    survival    stochastic depth of the stages with shortcut="identity": the survival falls linearly from 1 to this.

    ValueError for a resolution out of reach, for attention without its map, for ``survival`` < 1 without a residual stage.
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
        upsample: str = "transposed",
        shortcut: str = "none",
        norm: str = "batch",
        attention: Sequence[int] = (),
        survival: float = 1.0,
    ):
        super().__init__(z_dim, resolution, channels, classes, embedding_dim)
        base, doublings = stages(resolution)
        sizes = [base * 2**i for i in range(doublings)]
        check_attention(attention, sizes)
        residual = doublings - 1 if shortcut == "identity" else 0
        if survival < 1 and not residual:
            raise ValueError(f"survival={survival} needs residual stages: shortcut=identity and a resolution of at least 16")
        survivals = linear_survival(survival, residual) if residual else [1.0] * doublings
        self.stages, before = nn.ModuleList(), self.input_dim
        for i, size in enumerate(sizes):
            after, bias = width * (resolution // (2 * size)), needs_bias(norm)
            if i == 0:
                resize: nn.Module = nn.ConvTranspose2d(before, after, base, bias=bias)
                stage = GeneratorStage(resize, before, after, size, "none", norm, attention, 1.0)
            else:
                resize = make_upsample(upsample, before, after, bias=bias)
                stage = GeneratorStage(resize, before, after, size, shortcut, norm, attention, survivals[i - 1])
            self.stages.append(stage)
            before = after
        self.output = nn.Sequential(make_upsample(upsample, before, channels, bias=False), nn.Tanh())
        dcgan_(self)

    def body(self, z: Tensor) -> Tensor:
        x = z[:, :, None, None]
        for stage in self.stages:
            x = stage(x)
        return x


class DiscriminatorStage(nn.Module):
    """Convolution, norm, LeakyReLU; then dropout and self-attention. (n, c_in, h, w) -> (n, channels, size, size)."""

    def __init__(
        self, convolution: nn.Module, channels: int, size: int, norm: str, dropout: float = 0.0, attention: Sequence[int] = ()
    ):
        super().__init__()
        self.convolution, self.norm = convolution, make_norm(norm, channels)
        self.activation, self.dropout = nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True), nn.Dropout(dropout)
        self.attention = attend(channels, size, attention)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.dropout(self.activation(self.norm(self.convolution(x)))))


class DCGANDiscriminator(Discriminator):
    """Images (n, channels, resolution, resolution) [and labels (n,)] -> logits (n,); features (n, f, base, base).

    width             channels at half the resolution.
    classes, conditioning, embedding_dim, class_head: see nets.discriminator.Discriminator.
    downsample        of nets.resize.DOWNSAMPLES, in every stage.
    norm              of nets.layers.NORMS, in every stage but the first.
    attention         sizes in pixels of the maps that self-attention follows.
    minibatch_stddev  the spread within groups of four samples as one more feature (arXiv:1710.10196).
    dropout           probability after every stage's activation.

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
        downsample: str = "strided",
        norm: str = "batch",
        attention: Sequence[int] = (),
        minibatch_stddev: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__(
            resolution, channels, classes=classes, conditioning=conditioning, embedding_dim=embedding_dim, class_head=class_head
        )
        base, doublings = stages(resolution)
        sizes = [base * 2**i for i in reversed(range(doublings))]
        check_attention(attention, sizes)
        self.stages, before = nn.ModuleList(), channels + self.vector_dim
        for i, size in enumerate(sizes):
            after = width * (resolution // (2 * size))
            convolution = make_downsample(downsample, before, after, bias=i > 0 and needs_bias(norm))
            self.stages.append(DiscriminatorStage(convolution, after, size, norm if i else "none", dropout, attention))
            before = after
        self.minibatch_stddev = MinibatchStddev() if minibatch_stddev else nn.Identity()
        self.add_heads(before + minibatch_stddev, kernel_size=base, bias=False)
        dcgan_(self)

    def body(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return self.minibatch_stddev(x)
