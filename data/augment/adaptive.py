"""Adaptive strength of augmentation (arXiv:2006.06676, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AdaptiveStrength(nn.Module):
    """The strength p of augmentation, moved against overfitting of the discriminator.

    The measure is r = E[sign D(real)]: 0 where reals look like fakes on average, 1 where all are recognised. Every ``interval``
    steps p moves by their images / (adjust_kimg * 1000), up if the mean r of these steps is above ``target`` and down if below;
    it is kept from falling below 0. As in the paper there is no upper limit: above 1 only transforms with a multiplier
    below 1 still become more frequent.

    adjust_kimg: how many kimg p takes from 0 to 1; 500 from scratch, 100 for fine-tuning. All state is in the buffers.
    Read every step, so it is best left on the CPU.
    """

    strength: Tensor
    sign_sum: Tensor
    images: Tensor
    steps: Tensor

    def __init__(self, start: float = 0.0, target: float = 0.6, interval: int = 4, adjust_kimg: float = 500.0):
        super().__init__()
        if start < 0:
            raise ValueError(f"strength={start}: must be at least 0")
        if not -1 < target < 1:
            raise ValueError(f"target={target}: a mean sign, must lie between -1 and 1")
        if interval < 1:
            raise ValueError(f"interval={interval}: must be at least 1")
        if not adjust_kimg > 0:
            raise ValueError(f"adjust_kimg={adjust_kimg}: must be positive")
        self.target, self.interval, self.adjust_kimg = target, interval, adjust_kimg
        self.register_buffer("strength", torch.tensor(float(start)))
        self.register_buffer("sign_sum", torch.tensor(0.0))
        self.register_buffer("images", torch.tensor(0))
        self.register_buffer("steps", torch.tensor(0))

    @torch.no_grad()
    def update(self, sign_mean: Tensor | float, batch_size: int) -> None:
        """Once a step: ``sign_mean`` in [-1, 1] is the mean sign of the logits of this step's ``batch_size`` reals.

        Where one of them is NaN, the strength stands.
        """
        self.sign_sum += float(sign_mean) * batch_size
        self.images += batch_size
        self.steps += 1
        if int(self.steps) < self.interval:
            return
        images = int(self.images)
        direction = torch.sign(self.sign_sum / images - self.target)  # 0 for NaN
        self.strength.copy_((self.strength + direction * images / (self.adjust_kimg * 1000)).clamp(min=0))
        self.sign_sum.zero_()
        self.images.zero_()
        self.steps.zero_()
