"""What the generators have in common: latents, the class joined to them, precision and shape checks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nets.blocks import ClassEmbedding
from nets.precision import MixedPrecision


class Generator(MixedPrecision):
    """Latents (n, z_dim) [and labels (n,) int64] -> images (n, channels, resolution, resolution).

    With ``classes`` > 0 a learnt vector of the class (``embedding_dim`` numbers, drawn from N(0, 1) like the latent) is joined
    to the latent (arXiv:1411.1784); without, labels are ignored. A subclass writes :meth:`body` for ``input_dim`` numbers and
    sets ``output``, the last layer; after ``set_precision`` the body runs under autocast, the last layer never, since its
    result is the image and bfloat16 keeps only 8 bits. Images have the dtype of the parameters.
    """

    output: nn.Module

    def __init__(self, z_dim: int, resolution: int, channels: int, classes: int = 0, embedding_dim: int = 64):
        super().__init__()
        self.z_dim, self.resolution, self.channels, self.classes = z_dim, resolution, channels, classes
        self.embedding = ClassEmbedding(classes, embedding_dim, 1.0) if classes else None
        self.input_dim = z_dim + (embedding_dim if classes else 0)

    def body(self, z: Tensor) -> Tensor:
        """(n, input_dim) -> what ``output`` makes the images of."""
        raise NotImplementedError

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """ValueError for latents that are not (n, z_dim), and, if conditional, for missing or impossible labels."""
        if z.ndim != 2 or z.shape[1] != self.z_dim:
            raise ValueError(f"the generator needs latents (n, {self.z_dim}), found {tuple(z.shape)}")
        if self.embedding is not None:
            z = torch.cat([z, self.embedding(labels, len(z)).to(z.dtype)], dim=1)
        with self.inner(z):
            x = self.body(z)
        with self.outer(z):
            return self.output(x.to(self.outer_dtype))
