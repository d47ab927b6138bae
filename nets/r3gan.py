"""The networks of R3GAN: The GAN is dead; long live the GAN! (arXiv:2501.05441).

A stage is one resolution: a transition (FIR resampling by two, and a 1x1 convolution where the width changes) and residual
blocks. The generator climbs from 4x4 to the image; the discriminator is its mirror image. No normalisation, no style, no
minibatch statistics.

Precision: ``set_precision(torch.bfloat16, stages=3)`` runs the three stages of highest resolution in bfloat16. Bases and
embeddings (4x4, cheap) and the generator's last 1x1 (its output is the image, which bfloat16 would round to about 8 bits)
stay in the parameters' fp32; the discriminator's first 1x1 runs in its stage's dtype. Images and logits are fp32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nets.blocks import ClassEmbedding, Convolution, DiscriminativeBasis, GenerativeBasis, ResidualBlock
from nets.resample import Downsample, Upsample


class Stage(nn.Module):
    """The residual blocks of one resolution, between an optional way in (``before``) and way out (``after``)."""

    def __init__(self, before: Sequence[nn.Module], blocks: Sequence[nn.Module], after: Sequence[nn.Module]):
        super().__init__()
        self.before, self.blocks, self.after = (nn.Sequential(*part) for part in (before, blocks, after))
        self.dtype: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        """In ``self.dtype``, or in the dtype of the parameters if that is None."""
        x = x.to(self.dtype or self.blocks[0].project.weight.dtype)
        return self.after(self.blocks(self.before(x)))


def _per_stage(blocks: int | Sequence[int], widths: Sequence[int], cardinalities: Sequence[int]) -> list[int]:
    blocks = [blocks] * len(widths) if isinstance(blocks, int) else list(blocks)
    if not len(widths) == len(cardinalities) == len(blocks) >= 2:
        raise ValueError(
            f"R3GAN needs one width, cardinality and block count for each of at least 2 stages, found widths {list(widths)}, "
            f"cardinalities {list(cardinalities)}, blocks {blocks}"
        )
    if min(blocks) < 1:
        raise ValueError(f"R3GAN needs at least one block in each stage, found {blocks}")
    return blocks


def _change_width(before: int, after: int) -> list[nn.Module]:
    return [] if before == after else [Convolution(before, after)]


class _R3GANNetwork(nn.Module):
    stages: nn.ModuleList

    @property
    def resolution(self) -> int:
        return 4 * 2 ** (len(self.stages) - 1)

    def in_weights_format(self, x: Tensor) -> Tensor:
        """``x`` in channels_last if the weights are (after ``.to(memory_format=torch.channels_last)``): no copies later."""
        weights = (stage.blocks[0].mix.weight for stage in self.stages)
        channels_last = any(w.is_contiguous(memory_format=torch.channels_last) and not w.is_contiguous() for w in weights)
        return x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


class Generator(_R3GANNetwork):
    """Latents (n, z_dim) [and labels (n,) int64] -> images (n, channels, r, r), r = 4 * 2^(stages - 1), unbounded, about [-1, 1].

    widths, cardinalities, blocks   one entry a stage, from 4x4 up (``blocks`` may be one number for all).
    expansion                       channels inside a block, in widths.
    classes, embedding_dim          classes > 0: a learnt vector of the class is appended to the latent. An unconditional
                                    network ignores labels.
    """

    def __init__(
        self,
        z_dim: int,
        widths: Sequence[int],
        cardinalities: Sequence[int],
        blocks: int | Sequence[int] = 2,
        expansion: int = 2,
        classes: int = 0,
        embedding_dim: int = 64,
        channels: int = 3,
    ):
        super().__init__()
        blocks = _per_stage(blocks, widths, cardinalities)
        self.z_dim, self.classes, self.channels = z_dim, classes, channels
        self.embedding = ClassEmbedding(classes, embedding_dim, 1 / math.sqrt(classes)) if classes else None
        self.basis = GenerativeBasis(z_dim + (embedding_dim if classes else 0), widths[0])
        self.stages = nn.ModuleList()
        for i, (width, cardinality, count) in enumerate(zip(widths, cardinalities, blocks, strict=True)):
            way_in = [*_change_width(widths[i - 1], width), Upsample()] if i else []
            residual = [ResidualBlock(width, cardinality, expansion, sum(blocks)) for _ in range(count)]
            self.stages.append(Stage(way_in, residual, []))
        self.to_rgb = Convolution(widths[-1], channels)

    def set_precision(self, dtype: torch.dtype | None, stages: int = 3) -> None:
        """Run the last ``stages`` stages in ``dtype`` (None: all in fp32)."""
        for i, stage in enumerate(self.stages):
            stage.dtype = dtype if i >= len(self.stages) - stages else None

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """ValueError for latents that are not (n, z_dim), and, if conditional, for missing or impossible labels."""
        if z.ndim != 2 or z.shape[1] != self.z_dim:
            raise ValueError(f"the generator needs latents (n, {self.z_dim}), found {tuple(z.shape)}")
        if self.embedding is not None:
            z = torch.cat([z, self.embedding(labels, len(z)).to(z.dtype)], dim=1)
        x = self.in_weights_format(self.basis(z))
        for stage in self.stages:
            x = stage(x)
        return self.to_rgb(x.to(self.to_rgb.weight.dtype))


class Discriminator(_R3GANNetwork):
    """Images (n, channels, r, r) in [-1, 1] [and labels (n,) int64] -> logits (n,), r = 4 * 2^(stages - 1).

    widths, cardinalities, blocks   one entry a stage, from r down to 4x4: the generator's, reversed.
    classes, embedding_dim          classes > 0: the logit is the inner product of an image feature with a learnt vector of
                                    the class (a projection discriminator, arXiv:1802.05637, without its unconditional term).
                                    An unconditional network ignores labels.
    """

    def __init__(
        self,
        widths: Sequence[int],
        cardinalities: Sequence[int],
        blocks: int | Sequence[int] = 2,
        expansion: int = 2,
        classes: int = 0,
        embedding_dim: int = 64,
        channels: int = 3,
    ):
        super().__init__()
        blocks = _per_stage(blocks, widths, cardinalities)
        self.classes, self.channels = classes, channels
        self.from_rgb = Convolution(channels, widths[0])
        self.stages = nn.ModuleList()
        for i, (width, cardinality, count) in enumerate(zip(widths, cardinalities, blocks, strict=True)):
            way_out = [Downsample(), *_change_width(width, widths[i + 1])] if i + 1 < len(widths) else []
            residual = [ResidualBlock(width, cardinality, expansion, sum(blocks)) for _ in range(count)]
            self.stages.append(Stage([], residual, way_out))
        self.basis = DiscriminativeBasis(widths[-1], embedding_dim if classes else 1)
        self.embedding = ClassEmbedding(classes, embedding_dim, 1 / math.sqrt(classes * embedding_dim)) if classes else None

    def set_precision(self, dtype: torch.dtype | None, stages: int = 3) -> None:
        """Run the first ``stages`` stages in ``dtype`` (None: all in fp32)."""
        for i, stage in enumerate(self.stages):
            stage.dtype = dtype if i < stages else None

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """ValueError for images of another shape, and, if conditional, for missing or impossible labels."""
        return self.logits(self.features(images), labels)

    def features(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """(n, widths[-1], 4, 4): what the logit is made of; labels have no part in it."""
        if images.shape[1:] != (self.channels, self.resolution, self.resolution):
            expected = f"(n, {self.channels}, {self.resolution}, {self.resolution})"
            raise ValueError(f"the discriminator needs images {expected}, found {tuple(images.shape)}")
        dtype = self.from_rgb.weight.dtype
        x = self.in_weights_format(self.from_rgb(images.to(self.stages[0].dtype or dtype)))
        for stage in self.stages:
            x = stage(x)
        return x.to(dtype)

    def logits(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """(n,) logits of :meth:`features`."""
        features = self.basis(features)
        if self.embedding is None:
            return features.squeeze(1)
        return (features * self.embedding(labels, len(features))).sum(1)
