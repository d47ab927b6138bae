"""How weights are drawn before training."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.utils import parametrize

from nets.blocks import LEAKY_RELU_GAIN
from nets.layers import EMBEDDINGS, TRANSPOSED, WEIGHTED

INITS = ("paper", "normal", "kaiming", "orthogonal")

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
OTHER_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm)


@torch.no_grad()
def initialise(module: nn.Module, kind: str) -> None:
    """Draws every weight in ``module`` anew, in place and from PyTorch's default generator.

    paper       nothing: networks are born with their paper's scheme.
    normal      N(0, 0.02^2) (arXiv:1511.06434).
    kaiming     N(0, gain^2 / fan_in) with the gain of LeakyReLU 0.2 (arXiv:1502.01852). fan_in is the number of terms in an
                output's sum; in a transposed convolution a stride of s leaves only one in s^2 of the kernel's.
    orthogonal  orthonormal rows or columns of the matrix with a row for each output channel (arXiv:1312.6120), gain 1.

    Biases become 0, normalisations 1 and 0. Class embeddings keep the root mean square that their network chose, since they
    are inputs or prototypes and their scale belongs to the method: they are drawn anew from a normal distribution of that
    size, or, if ``orthogonal``, as a semi-orthogonal matrix of that size. Weights that are all zero were meant to be
    (fix-up initialisation) and stay so; other parameters (gains, learnt constants) are not touched.

    ValueError for another kind, and for weights under spectral norm, which must come after.
    """
    if kind not in INITS:
        raise ValueError(f"unknown init {kind!r}, allowed: {', '.join(INITS)}")
    if kind == "paper":
        return
    for name, layer in module.named_modules():
        if isinstance(layer, WEIGHTED):
            if parametrize.is_parametrized(layer, "weight"):
                raise ValueError(f"initialise must come before spectral norm, which {name or type(layer).__name__} has already")
            if layer.weight.any():
                _draw(layer, kind)
        elif isinstance(layer, BATCH_NORMS + OTHER_NORMS) and layer.weight is not None:
            layer.weight.fill_(1)
        else:
            continue
        if getattr(layer, "bias", None) is not None:
            layer.bias.zero_()


def dcgan_(module: nn.Module) -> None:
    """DCGAN's scheme, in place (arXiv:1511.06434): convolutions and linear maps N(0, 0.02^2), batch norm's scale N(1, 0.02^2).

    Biases and shifts become 0. Embeddings, other normalisations and other parameters are not touched.
    """
    for layer in module.modules():
        if isinstance(layer, EMBEDDINGS):
            continue
        if isinstance(layer, WEIGHTED):
            nn.init.normal_(layer.weight, 0.0, 0.02)
        elif isinstance(layer, BATCH_NORMS) and layer.weight is not None:
            nn.init.normal_(layer.weight, 1.0, 0.02)
        else:
            continue
        if getattr(layer, "bias", None) is not None:
            nn.init.zeros_(layer.bias)


def fan_in(layer: nn.Module) -> float:
    """How many inputs each output of a convolution or linear layer sums up, away from borders."""
    weight = layer.weight
    if isinstance(layer, TRANSPOSED):
        return weight.shape[0] / layer.groups * math.prod(weight.shape[2:]) / math.prod(layer.stride)
    return math.prod(weight.shape[1:])


def _draw(layer: nn.Module, kind: str) -> None:
    weight, embedding = layer.weight, isinstance(layer, EMBEDDINGS)
    size = weight.square().mean().sqrt()
    if kind == "orthogonal":
        matrix = weight.transpose(0, 1) if isinstance(layer, TRANSPOSED) else weight  # outputs first
        matrix.copy_(nn.init.orthogonal_(torch.empty(matrix.shape, dtype=weight.dtype, device=weight.device)))
        if embedding:
            weight.mul_(size / weight.square().mean().sqrt())
    else:
        std = 0.02 if kind == "normal" else LEAKY_RELU_GAIN / math.sqrt(fan_in(layer))
        nn.init.normal_(weight, 0.0, size.item() if embedding else std)
