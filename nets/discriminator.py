"""What the discriminators have in common: conditioning on a class, the two heads, precision and shape checks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.blocks import ClassEmbedding
from nets.layers import Conv2d
from nets.precision import MixedPrecision

CONDITIONINGS = ("none", "concat", "projection")


class Discriminator(MixedPrecision):
    """Images (n, channels, resolution, resolution) [and labels (n,) int64] -> logits (n,), or one a patch (n, h, w).

    classes, conditioning   how D is told the class, when ``classes`` > 0 (labels are ignored otherwise, and with "none"):
        "concat"            a learnt vector of the class (``embedding_dim`` numbers, of length about 1 at first like a one-hot
                            code) joined to the image, as further channels that are constant over it;
        "projection"        the inner product of the features with a learnt vector of the class, added to the logit
                            (arXiv:1802.05637). A map of features is first summed over what the logit sees of it.
    class_head              a second head on the features, for :meth:`class_logits` (arXiv:1610.09585).

    A subclass writes :meth:`body` for ``channels + vector_dim`` channels and calls :meth:`add_heads` when it has built that.
    After ``set_precision`` the body runs under autocast and the heads do not; logits have the dtype of the parameters.
    """

    receptive_field: int | None = None
    """Side in pixels of what one logit sees, for a network with one logit a patch."""

    def __init__(
        self,
        resolution: int,
        channels: int,
        *,
        classes: int = 0,
        conditioning: str = "none",
        embedding_dim: int = 64,
        class_head: bool = False,
    ):
        super().__init__()
        if conditioning not in CONDITIONINGS:
            raise ValueError(f"conditioning={conditioning} is unknown; allowed: {', '.join(CONDITIONINGS)}")
        if class_head and not classes:
            raise ValueError("a class head needs classes, found 0")
        self.resolution, self.channels, self.classes = resolution, channels, classes
        self.conditioning, self.has_class_head = conditioning, class_head
        self.vector_dim = embedding_dim if classes and conditioning == "concat" else 0
        self.embedding = ClassEmbedding(classes, embedding_dim, self.vector_std(embedding_dim)) if self.vector_dim else None

    def add_heads(self, features: int, kernel_size: int | None = None, padding: int = 0, bias: bool = True) -> None:
        """Heads for features (n, features), or, with ``kernel_size``, for a map (n, features, h, w) that they slide over."""

        def head(outputs: int) -> nn.Module:
            if kernel_size is None:
                return nn.Linear(features, outputs, bias=bias)
            return Conv2d(features, outputs, kernel_size, padding=padding, bias=bias)

        self.window, self.window_padding = kernel_size, padding
        self.head = head(1)
        self.class_head = head(self.classes) if self.has_class_head else None
        projects = self.classes > 0 and self.conditioning == "projection"
        # features of size 1 give a term of size 1
        std = 1 / math.sqrt(features * (kernel_size or 1) ** 2)
        self.projection = ClassEmbedding(self.classes, features, std) if projects else None

    @staticmethod
    def vector_std(embedding_dim: int) -> float:
        """Standard deviation of a fresh "concat" vector's numbers."""
        return 1 / math.sqrt(embedding_dim)

    def join(self, images: Tensor, vector: Tensor) -> Tensor:
        """Images (n, channels, h, w) and the classes' vectors (n, vector_dim) -> what ``body`` sees, with "concat"."""
        return torch.cat([images, vector[:, :, None, None].expand(-1, -1, *images.shape[2:])], dim=1)

    def body(self, x: Tensor) -> Tensor:
        """Images, joined with the class's vector if there is one -> features (n, f) or (n, f, h, w)."""
        raise NotImplementedError

    def features(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """What both heads see: (n, f) or (n, f, h, w). ValueError for images of another shape and for impossible labels."""
        if images.shape[1:] != (self.channels, self.resolution, self.resolution):
            expected = f"(n, {self.channels}, {self.resolution}, {self.resolution})"
            raise ValueError(f"the discriminator needs images {expected}, found {tuple(images.shape)}")
        if self.embedding is not None:
            images = self.join(images, self.embedding(labels, len(images)).to(images.dtype))
        with self.inner(images):
            features = self.body(images)
        return features.to(self.outer_dtype)

    def logits(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """The real/fake head: features -> (n,), or (n, h, w) for a network of patches."""
        with self.outer(features):
            logits = self.head(features)
            if self.projection is not None:
                vector = self.projection(labels, len(features))
                if self.window is None:
                    logits = logits + (features * vector).sum(1, keepdim=True)
                else:
                    product = (features * vector[:, :, None, None]).sum(1, keepdim=True)
                    logits = logits + F.avg_pool2d(product, self.window, 1, self.window_padding, divisor_override=1)
        return logits.flatten() if self.receptive_field is None else logits.squeeze(1)

    def class_logits(self, features: Tensor) -> Tensor:
        """The class head: features -> (n, classes), the mean over patches. ValueError without a class head."""
        if self.class_head is None:
            raise ValueError("this discriminator was built without class_head=True")
        with self.outer(features):
            logits = self.class_head(features)
        return logits if logits.ndim == 2 else logits.mean((2, 3))

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """``logits(features(images, labels), labels)``."""
        return self.logits(self.features(images, labels), labels)
