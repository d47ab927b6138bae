"""Up- and down-sampling by two behind a binomial low-pass filter, zeros outside the image (arXiv:1904.11486, 1912.04958)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nets.convolution import _InputGradient, conv2d


def lowpass_kernel(taps: Sequence[float] = (1, 2, 1)) -> Tensor:
    """The (k, k) kernel, sum 1, of a separable filter followed by averaging pixel pairs: k = len(taps) + 1, even.

    (1, 2, 1) gives the outer product of (1, 3, 3, 1) / 8, whose centre lies between pixels: no shift in either direction.
    """
    if len(taps) % 2 == 0:
        raise ValueError(f"a low-pass filter needs an odd number of taps, found {len(taps)}: {tuple(taps)}")
    row = torch.tensor([*taps, 0.0], dtype=torch.float64) + torch.tensor([0.0, *taps], dtype=torch.float64)
    return (torch.outer(row, row) / row.sum() ** 2).float()


class _Resample(nn.Module):
    kernel: Tensor

    def __init__(self, taps: Sequence[float] = (1, 2, 1)):
        super().__init__()
        self.register_buffer("kernel", lowpass_kernel(taps), persistent=False)
        self.padding = len(taps) // 2

    def depthwise(self, x: Tensor) -> Tensor:
        kernel = self.kernel.to(x.dtype)
        return kernel.expand(x.shape[1], 1, *kernel.shape)


class Downsample(_Resample):
    """(n, c, h, w) -> (n, c, h / 2, w / 2); h and w even. A constant image keeps its value away from the border."""

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.depthwise(x), stride=2, padding=self.padding, groups=x.shape[1])


class Upsample(_Resample):
    """(n, c, h, w) -> (n, c, 2 h, 2 w): four times the transpose of :class:`Downsample`."""

    def forward(self, x: Tensor) -> Tensor:
        size = (2 * x.shape[2], 2 * x.shape[3])
        return _InputGradient.apply(x, 4 * self.depthwise(x), size, (2, self.padding, x.shape[1]))
