"""PatchGAN: a discriminator with one logit for each overlapping patch (arXiv:1611.07004, arXiv:1703.10593).

Convolutions only, no end that sees the whole image. ``layers`` of them have stride 2 and two have stride 1, all 4x4, so that a
logit's receptive field is 16, 34, 70, 142 or 286 pixels; or all are 1x1, and it is one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from nets.dcgan import DiscriminatorStage, check_attention
from nets.discriminator import Discriminator
from nets.initialise import dcgan_
from nets.layers import Conv2d, needs_bias
from nets.resize import downsample as make_downsample

FIELDS: dict[int, int] = {1: 0, 16: 1, 34: 2, 70: 3, 142: 4, 286: 5}
"""Receptive field in pixels -> convolutions of stride 2."""

WIDEST = 8  # times the width


def map_sizes(field: int, resolution: int) -> list[int]:
    """Sizes of the hidden maps, first to last, some of them 0 if the resolution is too small; ValueError for another field."""
    if field not in FIELDS:
        raise ValueError(f"a patch of {field} pixels is unknown; allowed: {', '.join(map(str, FIELDS))}")
    if field == 1:
        return [resolution, resolution]
    sizes = [resolution // 2 ** (i + 1) for i in range(FIELDS[field])]
    return [*sizes, max(0, sizes[-1] - 1)]


def logit_size(field: int, resolution: int) -> int:
    """Logits along each side of an image, 0 if it is too small for the field; ValueError for another field."""
    return max(0, map_sizes(field, resolution)[-1] - (field > 1))


def receptive_field(field: int, downsample: str = "strided") -> int:
    """What a logit really sees, in pixels along a side: ``field`` with strided convolutions, more behind a low-pass filter."""
    if field == 1:
        return 1
    layers, reach = FIELDS[field], {"strided": 3, "avg_pool": 3, "fir": 5}[downsample]  # pixels beyond one, at each stride of 2
    return 1 + reach * (2**layers - 1) + 2 * 3 * 2**layers


class PatchDiscriminator(Discriminator):
    """Images (n, channels, resolution, resolution) [and labels (n,)] -> logits (n, s, s), s = logit_size(field, resolution).

    width       channels after the first convolution; they double with each further one, up to 8 times.
    field       receptive field of a logit in pixels, one of FIELDS; 70 is the paper's. ``receptive_field`` is what a logit
                sees with this ``downsample``, which is more behind a low-pass filter ("fir"); self-attention and the
                statistics of a norm look over the whole map.
    classes, conditioning, embedding_dim, class_head: see nets.discriminator.Discriminator.
    downsample  of nets.resize.DOWNSAMPLES, for the convolutions of stride 2.
    norm        of nets.layers.NORMS, in all but the first and the last layer.
    attention   sizes in pixels of the hidden maps that self-attention follows.
    dropout     probability after every activation.

    ValueError for another field, for one that the resolution is too small for, and for attention without its map.
    """

    def __init__(
        self,
        width: int,
        resolution: int,
        channels: int,
        *,
        field: int = 70,
        classes: int = 0,
        conditioning: str = "none",
        embedding_dim: int = 64,
        class_head: bool = False,
        downsample: str = "strided",
        norm: str = "batch",
        attention: Sequence[int] = (),
        dropout: float = 0.0,
    ):
        super().__init__(
            resolution, channels, classes=classes, conditioning=conditioning, embedding_dim=embedding_dim, class_head=class_head
        )
        if not logit_size(field, resolution):
            fitting = [str(f) for f in FIELDS if logit_size(f, resolution)]
            raise ValueError(f"a patch of {field} pixels needs larger images than {resolution}; allowed: {', '.join(fitting)}")
        sizes = map_sizes(field, resolution)
        check_attention(attention, sizes)
        self.receptive_field = receptive_field(field, downsample)
        self.stages, before = nn.ModuleList(), channels + self.vector_dim
        for i, size in enumerate(sizes):
            after = width * min(2**i, WIDEST)
            kind = norm if i else "none"
            bias = needs_bias(kind)
            if field == 1:
                convolution: nn.Module = Conv2d(before, after, 1, bias=bias)
            elif i < FIELDS[field]:
                convolution = make_downsample(downsample, before, after, bias=bias)
            else:
                convolution = Conv2d(before, after, 4, padding=1, bias=bias)
            # maps of one size follow each other where field is 1: attention stands after the first of them
            here = attention if size not in sizes[:i] else ()
            self.stages.append(DiscriminatorStage(convolution, after, size, kind, dropout, here))
            before = after
        self.add_heads(before, *((1, 0) if field == 1 else (4, 1)))
        dcgan_(self)

    def body(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x
