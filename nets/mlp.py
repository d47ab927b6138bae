"""The networks of the first GAN: Generative adversarial nets (arXiv:1406.2661): layers that see all pixels at once.

ReLU in G as in the paper; LeakyReLU 0.2 in D, where the paper has maxout. Weights are drawn uniformly with the variance that
keeps the size of activations (arXiv:1502.01852), 2 / fan_in or its like for LeakyReLU, and 1 / fan_in for the last layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nets.blocks import LEAKY_RELU_SLOPE
from nets.discriminator import Discriminator
from nets.generator import Generator


def _linear(inputs: int, outputs: int, nonlinearity: str = "linear") -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_uniform_(layer.weight, LEAKY_RELU_SLOPE, nonlinearity=nonlinearity)
    nn.init.zeros_(layer.bias)
    return layer


def _check_depth(depth: int) -> None:
    if depth < 1:
        raise ValueError(f"an MLP needs at least one hidden layer, found depth={depth}")


class MLPGenerator(Generator):
    """Latents (n, z_dim) [and labels (n,)] -> (n, channels, resolution, resolution) through ``depth`` layers of ``width`` units.

    bounded  a tanh at the end, as images need; without it a linear end, as points (n, dimensions, 1, 1) need.
    """

    def __init__(
        self,
        z_dim: int,
        width: int,
        resolution: int,
        channels: int,
        *,
        depth: int = 3,
        classes: int = 0,
        embedding_dim: int = 64,
        bounded: bool = True,
    ):
        super().__init__(z_dim, resolution, channels, classes, embedding_dim)
        _check_depth(depth)
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [_linear(width if i else self.input_dim, width, "relu"), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        shape = (channels, resolution, resolution)
        last = [_linear(width, math.prod(shape)), nn.Unflatten(1, shape)]
        self.output = nn.Sequential(*last, nn.Tanh()) if bounded else nn.Sequential(*last)

    def body(self, z: Tensor) -> Tensor:
        return self.layers(z)


class MLPDiscriminator(Discriminator):
    """(n, channels, resolution, resolution) [and labels (n,)] -> logits (n,) through ``depth`` layers of ``width`` units.

    classes, conditioning, embedding_dim, class_head: see nets.discriminator.Discriminator; with "concat" the class's vector,
    drawn from N(0, 1), is joined to the pixels. dropout: probability after every hidden layer. Features (n, width).
    """

    def __init__(
        self,
        width: int,
        resolution: int,
        channels: int,
        *,
        depth: int = 3,
        classes: int = 0,
        conditioning: str = "none",
        embedding_dim: int = 64,
        class_head: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__(
            resolution, channels, classes=classes, conditioning=conditioning, embedding_dim=embedding_dim, class_head=class_head
        )
        _check_depth(depth)
        layers: list[nn.Module] = []
        before = channels * resolution**2 + self.vector_dim
        for _ in range(depth):
            activation = nn.LeakyReLU(LEAKY_RELU_SLOPE, inplace=True)
            layers += [_linear(before, width, "leaky_relu"), activation, nn.Dropout(dropout)]
            before = width
        self.layers = nn.Sequential(*layers)
        self.add_heads(width)
        for head in (self.head, self.class_head):
            if head is not None:
                nn.init.kaiming_uniform_(head.weight, nonlinearity="linear")
                nn.init.zeros_(head.bias)

    @staticmethod
    def vector_std(embedding_dim: int) -> float:
        return 1.0  # each number weighs as much as a pixel

    def join(self, images: Tensor, vector: Tensor) -> Tensor:
        return torch.cat([images.flatten(1), vector], dim=1)

    def body(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))
