"""Distances between two sets of images, as functions of their features. torch-fidelity computes what it has.

Features are (n, d) float32 on the CPU; "fake" is what is scored, "real" the reference. Each function needs enough samples
and says so with TooFew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 2048  # rows of a distance matrix at once: memory, not results


class TooFew(ValueError):
    """Fewer images than a metric needs."""


@dataclass(frozen=True)
class Statistics:
    """The Gaussian that the Frechet distance compares: of ``n`` features, mean (d,) and unbiased covariance (d, d), float64."""

    n: int
    mean: Tensor
    covariance: Tensor


class RunningStatistics:
    """Statistics of features that come in parts: float64, and memory does not grow with their number."""

    def __init__(self) -> None:
        self.n = 0

    def add(self, features: Tensor) -> None:
        """One more part (n, d)."""
        features = features.double()
        if self.n == 0:  # sums of squares far from the origin would cancel: count from the first part's mean
            d = features.shape[1]
            self.origin, self.total, self.products = features.mean(dim=0), features.new_zeros(d), features.new_zeros(d, d)
        features = features - self.origin
        self.n += len(features)
        self.total += features.sum(dim=0)
        self.products += features.T @ features

    def result(self) -> Statistics:
        """Of all parts so far, at least 2 images."""
        if self.n < 2:
            raise TooFew(f"a covariance needs at least 2 images, got {self.n}")
        mean = self.total / self.n
        covariance = (self.products - self.n * torch.outer(mean, mean)) / (self.n - 1)
        return Statistics(self.n, self.origin + mean, covariance)


def statistics(features: Tensor) -> Statistics:
    """Statistics of features (n, d), n >= 2."""
    running = RunningStatistics()
    running.add(features)
    return running.result()


def frechet(fake: Statistics, real: Statistics) -> float:
    """|mu_1 - mu_2|^2 + tr(S_1 + S_2 - 2 (S_1 S_2)^(1/2)) (arXiv:1706.08500); FID if the features are Inception's."""
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric

    def numbers(s: Statistics) -> dict[str, np.ndarray]:
        return {"mu": s.mean.numpy(), "sigma": s.covariance.numpy()}

    value = fid_statistics_to_metric(numbers(fake), numbers(real), verbose=False)[KEY_METRIC_FID]
    return max(value, 0.0) if value > -1e-6 else value


def kid_subset_size(n_fake: int, n_real: int) -> int:
    """min(1000, n/2) of the smaller set: subsets of the whole set would all be the same one."""
    return min(1000, min(n_fake, n_real) // 2)


def kernel_distance(fake: Tensor, real: Tensor, seed: int = 2020, subsets: int = 100) -> tuple[float, float]:
    """KID (arXiv:1801.01401): the unbiased squared MMD under (x.y/d + 1)^3; mean and standard deviation over ``subsets``
    random subsets of :func:`kid_subset_size` images, drawn with ``seed``."""
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric

    size = kid_subset_size(len(fake), len(real))
    if size < 2:
        raise TooFew(f"KID needs at least 4 images on either side, got {len(fake)} and {len(real)}")
    found = kid_features_to_metric(fake, real, kid_subsets=subsets, kid_subset_size=size, rng_seed=seed, verbose=False)
    return found[KEY_METRIC_KID_MEAN], found[KEY_METRIC_KID_STD]


def inception_score(logits: Tensor, seed: int = 2020, splits: int = 10) -> tuple[float, float]:
    """exp E KL(p(y|x) || p(y)) (arXiv:1606.03498) from class scores (n, classes); mean and standard deviation over ``splits``
    parts of the shuffled samples."""
    from torch_fidelity.metric_isc import KEY_METRIC_ISC_MEAN, KEY_METRIC_ISC_STD, isc_features_to_metric

    if len(logits) < splits:
        raise TooFew(f"the inception score needs at least {splits} images, got {len(logits)}")
    found = isc_features_to_metric(logits, splits=splits, shuffle=True, rng_seed=seed)
    return found[KEY_METRIC_ISC_MEAN], found[KEY_METRIC_ISC_STD]


def precision_recall(fake: Tensor, real: Tensor, k: int = 3) -> tuple[float, float]:
    """Improved precision and recall (arXiv:1904.06991): the share of fakes within the real manifold, and of reals within
    that of the fakes; a manifold is the union of balls that reach to each sample's ``k``-th neighbour."""
    from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

    if min(len(fake), len(real)) <= k:
        raise TooFew(f"precision and recall need more than {k} images on either side, got {len(fake)} and {len(real)}")
    found = prc_features_to_metric(
        fake, real, prc_neighborhood=k, prc_batch_size=BLOCK, save_cpu_ram=True, verbose=False
    )  # fmt: skip
    return found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]


def density_coverage(fake: Tensor, real: Tensor, k: int = 5) -> tuple[float, float]:
    """Density and coverage (arXiv:2002.09797): how many of the reals' balls (to their ``k``-th real neighbour) hold a fake, over
    k and averaged over fakes (may exceed 1); and the share of reals whose ball holds any fake."""
    if min(len(fake), len(real)) <= k:
        raise TooFew(f"density and coverage need more than {k} images on either side, got {len(fake)} and {len(real)}")
    inside, covered = 0, 0
    for rows in torch.arange(len(real)).split(BLOCK):
        distances = torch.cdist(real[rows], real)
        distances[torch.arange(len(rows)), rows] = torch.inf  # rounding can leave a sample some way from itself
        radii = distances.topk(k, dim=1, largest=False).values[:, -1:]  # many times as fast as kthvalue
        hits = torch.cdist(real[rows], fake) < radii
        inside += int(hits.sum())
        covered += int(hits.any(dim=1).sum())
    return inside / (k * len(fake)), covered / len(real)


def intra_class_frechet(
    fake: Tensor, fake_labels: Tensor, real: Tensor, real_labels: Tensor, classes: int
) -> tuple[float, list[float]]:
    """The Frechet distance of each class (features of fakes asked for it against reals of it), and their mean."""
    values = []
    for label in range(classes):
        ours, theirs = fake[fake_labels == label], real[real_labels == label]
        if min(len(ours), len(theirs)) < 2:
            raise TooFew(
                f"the intra-class distance needs at least 2 images a class, class {label} has {len(ours)} samples and "
                f"{len(theirs)} reference images"
            )
        values.append(frechet(statistics(ours), statistics(theirs)))
    return sum(values) / classes, values


def nearest(queries: Tensor, references: Tensor, k: int = 1, but: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(distances (n, k), indices (n, k)) of each query's ``k`` nearest references, nearest first.

    but  (n,) the reference that does not count for each query: itself, where references are queries.
    """
    found = []
    for rows in torch.arange(len(queries)).split(BLOCK):
        distances = torch.cdist(queries[rows], references)
        if but is not None:
            distances[torch.arange(len(rows)), but[rows]] = torch.inf
        found.append(distances.topk(k, dim=1, largest=False))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])
