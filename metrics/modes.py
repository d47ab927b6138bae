"""Mode coverage: of data whose modes are known, which ones do samples find, and how evenly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

REACH = 3.0  # sigmas from a mode within which a sample counts as one of it (arXiv:1705.07761)


def assigned(logits: Tensor) -> Tensor:
    """The mode (n,) int64 of each sample, by the largest of its logits (n, modes); -1 where all of them are -inf (or NaN)."""
    best = logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).max(dim=1)
    return torch.where(best.values == -torch.inf, -1, best.indices)


def mode_coverage(logits: Tensor) -> tuple[int, float, float]:
    """(modes with at least one sample, share of samples that belong to any mode, KL in nats of how samples are distributed over
    modes from the uniform distribution) of logits (n, modes) as for :func:`assigned`, n >= 1.

    The KL is between 0 and log(modes), and NaN if no sample belongs to a mode. It counts only samples that do. That of n
    samples of perfectly uniform modes is not 0 but about (modes - 1) / 2n.
    """
    modes = logits.shape[1]
    which = assigned(logits)
    counts = which[which >= 0].bincount(minlength=modes).double()
    total = float(counts.sum())
    shares = counts[counts > 0] / total
    kl = max(0.0, float((shares * (shares * modes).log()).sum())) if total else math.nan
    return int((counts > 0).sum()), total / len(logits), kl


def by_distance(distances: Tensor) -> Tensor:
    """Logits (n, modes) of distances (n, modes) in sigmas to each mode: their negatives, and -inf throughout for a sample that
    is more than :data:`REACH` from all of them."""
    return torch.where(distances.amin(dim=1, keepdim=True) <= REACH, -distances, -torch.inf)


def of_numbers(logits: Tensor) -> Tensor:
    """Log-probabilities (n, 10^k) of k-digit numbers, the first digit the most significant, from logits (n, k, 10) of digits."""
    digits = logits.log_softmax(dim=2)
    found = digits[:, 0]
    for k in range(1, digits.shape[1]):
        found = (found.unsqueeze(2) + digits[:, k].unsqueeze(1)).flatten(1)
    return found
