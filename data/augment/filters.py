"""The wavelet filters of arXiv:2006.06676, appendix B, as matrices that act on the rows or columns of an image.

Every filter here is separable and every border is a reflection, so padding, filtering and resampling are one small matrix for
each side. Images are then filtered by two matrix products, which autograd differentiates as often as it likes.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

SYM6 = (
    0.015404109327027373, 0.0034907120842174702, -0.11799011114819057, -0.048311742585633, 0.4910559419267466,
    0.787641141030194, 0.3379294217276218, -0.07263752278646252, -0.021060292512300564, 0.04472490177066578,
    0.0017677118642428036, -0.007800708325034148,
)  # fmt: skip
"""Low-pass taps of Daubechies' least asymmetric wavelet with six vanishing moments; squares sum to 1."""

RING = len(SYM6) // 4
"""Pixels computed beyond each border of the output, because the filter that halves the resolution looks there."""


def _wavelet(taps: tuple[float, ...]) -> Tensor:
    taps = torch.tensor(taps, dtype=torch.float64)
    return taps / taps.sum()


def _convolve(a: Tensor, b: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(a, (len(b) - 1, len(b) - 1))
    return padded.unfold(0, len(b), 1) @ b.flip(0)


def _stretch(taps: Tensor, factor: int) -> Tensor:
    """``factor - 1`` zeros between neighbouring taps: the same filter for a signal of 1/factor the resolution."""
    stretched = taps.new_zeros((len(taps) - 1) * factor + 1)
    stretched[::factor] = taps
    return stretched


def filter_bank() -> Tensor:
    """(4, 43) float64: zero-phase band-pass filters, lowest band first, each an octave, which sum to the identity.

    Built from the wavelet sym2 = db2 by the recursion of appendix B: a half-band low-pass L and its complement 1 - L at
    full, half and quarter resolution.
    """
    root = 3**0.5
    low = torch.tensor([1 - root, 3 - root, 3 + root, 1 + root], dtype=torch.float64) / 32**0.5
    low = _convolve(low, low.flip(0)) / 2
    high = -low
    high[len(low) // 2] += 1
    bands, lower = [], torch.ones(1, dtype=torch.float64)  # ``lower``: what the finer bands have left over
    for factor in (1, 2, 4):
        bands.append(_convolve(lower, _stretch(high, factor)))
        lower = _convolve(lower, _stretch(low, factor))
    bands.append(lower)
    pads = [(len(lower) - len(band)) // 2 for band in bands]
    return torch.stack([torch.nn.functional.pad(band, (pad, pad)) for band, pad in zip(bands, pads)]).flip(0)


def _banded(taps: Tensor, which: Tensor) -> Tensor:
    """taps[which], zero where ``which`` lies outside the filter."""
    inside = (which >= 0) & (which < len(taps))
    return torch.where(inside, taps[which.clamp(0, len(taps) - 1)], 0)


def _reflection(size: int, margin: int) -> Tensor:
    """(size + 2 margin, size): pads by reflection about the centres of the outermost pixels, as often as it takes."""
    period = max(2 * (size - 1), 1)
    position = (torch.arange(size + 2 * margin) - margin) % period
    return torch.nn.functional.one_hot(torch.minimum(position, period - position), size).double()


@lru_cache(maxsize=64)
def upsampling(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(2 (3 size - 2), size): reflects a line by size - 1 pixels on each side, then doubles its resolution."""
    padded = _reflection(size, size - 1)
    fine, coarse = torch.arange(2 * len(padded))[:, None], torch.arange(len(padded))
    return _constant(2 * _banded(_wavelet(SYM6), fine + len(SYM6) // 2 - 1 - 2 * coarse) @ padded, device, dtype)


@lru_cache(maxsize=64)
def downsampling(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(size, 2 (size + 2 RING)): halves the resolution of a line and drops the ring; undoes :func:`upsampling`."""
    coarse, fine = torch.arange(size)[:, None], torch.arange(2 * (size + 2 * RING))
    return _constant(_banded(_wavelet(SYM6), fine - 2 * coarse - 1), device, dtype)


@lru_cache(maxsize=64)
def band_filters(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(4, size, size): :func:`filter_bank` on a line that goes on by reflection."""
    bank = filter_bank()
    margin = bank.shape[1] // 2
    shift = torch.arange(size + 2 * margin) - torch.arange(size)[:, None]
    return _constant(torch.stack([_banded(band, shift) for band in bank]) @ _reflection(size, margin), device, dtype)


def _constant(matrix: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # a tensor made in inference mode could not serve a later training step
        return matrix.to(device, dtype).clone()
