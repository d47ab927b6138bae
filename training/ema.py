"""The exponential moving average of the sampling networks.

Parameters and BatchNorm statistics are averaged with a half-life in images: after ``half_life`` images the weight of
today's value is one half. Every other buffer (w mean, noise, counters, spectral-norm vectors) is copied: an average of
those is not a state the network can be in. The average lives in fp32 whatever the precision of training.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def ema_beta(batch_size: float, half_life: float) -> float:
    """The weight that stays on the average after one step of ``batch_size`` images; ``half_life`` in images, 0 copies."""
    return 0.5 ** (batch_size / max(half_life, 1e-8))


def split_state(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """(tensors that are averaged, tensors that are copied), in a fixed order."""
    averaged = list(module.parameters())
    copied = []
    for child in module.modules():
        statistics = ("running_mean", "running_var") if isinstance(child, nn.modules.batchnorm._BatchNorm) else ()
        for name, buffer in child.named_buffers(recurse=False):
            (averaged if name in statistics else copied).append(buffer)
    return averaged, copied


def ema_copy(module: nn.Module) -> nn.Module:
    """A frozen deep copy in evaluation mode."""
    return copy.deepcopy(module).eval().requires_grad_(False)


@torch.no_grad()
def ema_update(average: nn.Module, module: nn.Module, beta: float) -> None:
    """average <- beta * average + (1 - beta) * module, in place."""
    ours, our_copies = split_state(average)
    theirs, their_copies = split_state(module)
    if beta == 0.0:
        torch._foreach_copy_(ours, theirs)
    else:
        torch._foreach_lerp_(ours, theirs, 1.0 - beta)
    for mine, its in zip(our_copies, their_copies, strict=True):
        mine.copy_(its)
