"""From images to numbers: features of samples and of a reference, and the metrics that compare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data import DataSource
from errors import UserError
from metrics import cache
from metrics.distances import (
    RunningStatistics,
    Statistics,
    TooFew,
    density_coverage,
    frechet,
    inception_score,
    intra_class_frechet,
    kernel_distance,
    kid_subset_size,
    precision_recall,
)
from metrics.extractors import Extractor
from metrics.modes import mode_coverage

CHUNK = 1024  # images whose features travel between processes at once
KEPT = 50_000  # reference features that are kept one by one; the Frechet distance sees all of them
REFERENCE_VERSION = 1  # of how reference images become features

ImagesAt = Callable[[int, int], Tensor]
"""(first, last) -> images first … last - 1 of a set as data sets store them: uint8 (last - first, C, H, W), or points."""


@dataclass
class Group:
    """How a set is split over processes; the default is one process.

    share   n -> (first, last): this process's part of n images.
    gather  (this process's part (m, …), n) -> all n, in every process.
    """

    share: Callable[[int], tuple[int, int]] = lambda n: (0, n)
    gather: Callable[[Tensor, int], Tensor] = lambda part, n: part


@dataclass
class FeatureSet:
    """What an extractor saw of a set of images.

    statistics  of all ``statistics.n`` images.
    features    (m, d) of them, one by one; m = n up to KEPT, else a random part.
    indices     (m,) int64: which images of the set these are.
    logits      (m, classes) or None.     labels  (m,) int64 or None: of samples, what they were asked to be.
    rejects     whether logits may be -inf throughout, for what belongs to no mode.
    """

    statistics: Statistics
    features: Tensor
    indices: Tensor
    logits: Tensor | None = None
    labels: Tensor | None = None
    rejects: bool = False


def features_of(
    extractors: Sequence[Extractor],
    n: int,
    images_at: ImagesAt,
    labels: Tensor | None = None,
    batch_size: int = 50,
    group: Group | None = None,
    advance: Callable[[int], Any] = lambda count: None,
    most: int | None = None,
    with_logits: bool = True,
) -> dict[str, FeatureSet]:
    """Extractor name -> what it saw of n images; the same in every process of ``group``.

    labels   (n,) of the images.        batch_size  images at once; changes features by rounding only.
    advance  hears of images done.      most        features to keep one by one (a fixed random part of n); None: all.
    with_logits  whether to keep logits where there are any.
    """
    group = group or Group()
    scored = {e.name for e in extractors if with_logits and (e.logits or e.modes)}
    keep = torch.ones(n, dtype=torch.bool)
    if most is not None and most < n:
        keep[torch.randperm(n, generator=torch.Generator().manual_seed(1))[most:]] = False
    running = {e.name: RunningStatistics() for e in extractors}
    features: dict[str, list[Tensor]] = {e.name: [] for e in extractors}
    logits: dict[str, list[Tensor]] = {e.name: [] for e in extractors}
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        first, last = (start + edge for edge in group.share(size))
        lows = range(first, last, batch_size) if last > first else [start]  # no part of a small chunk: the shapes of one image
        batches = [images_at(low, min(low + batch_size, max(last, low + 1))) for low in lows]
        for e in extractors:
            seen = [e(images) for images in batches]
            joined = group.gather(torch.cat([f for f, _ in seen])[: last - first], size)
            running[e.name].add(joined)
            features[e.name].append(joined[keep[start : start + size]])
            if e.name in scored:
                joined = group.gather(torch.cat([x for _, x in seen])[: last - first], size)
                logits[e.name].append(joined[keep[start : start + size]])
        advance(size)
    return {
        e.name: FeatureSet(
            running[e.name].result(),
            torch.cat(features[e.name]),
            keep.nonzero()[:, 0],
            torch.cat(logits[e.name]) if e.name in scored else None,
            None if labels is None else labels[keep],
            e.rejects,
        )
        for e in extractors
    }


def reference_indices(size: int, count: int | None = None) -> Tensor:
    """(count,) int64, ascending: which images of a set are the reference: all, or a fixed random part."""
    if count is None or count >= size:
        return torch.arange(size)
    return torch.randperm(size, generator=torch.Generator().manual_seed(0))[:count].sort().values


def reference_of(
    extractor: Extractor,
    source: DataSource,
    count: int | None = None,
    folder: Path | None = None,
    batch_size: int = 50,
    group: Group | None = None,
    agree: Callable[[Any], Any] = lambda value: value,
    advance: Callable[[int], Any] = lambda n: None,
    say: Callable[[str], None] = print,
    write: bool = True,
) -> FeatureSet | None:
    """What ``extractor`` sees of ``source`` (of ``count`` of its images), from the cache in ``folder`` where it is there.

    agree  makes every process of ``group`` take the first one's view (whether the cache has it); the others may get None.
    write  whether this process may write to the cache.
    """
    chosen = reference_indices(len(source), count)
    key = {
        "version": REFERENCE_VERSION, "data": source.content_hash, "count": len(chosen), "resolution": source.spec.resolution,
        "extractor": extractor.name, "weights": extractor.protocol.get("weights_hash"), "layer": extractor.protocol.get("layer"),
        "resizer": extractor.protocol.get("resizer"), "device": extractor.device.type, "kept": KEPT,
    }  # fmt: skip
    kept = cache.read(folder, f"reference-{extractor.name}", key)
    if agree(kept is not None):
        if kept is None:
            return None
        s = kept["statistics"]
        found = Statistics(s["n"], s["mean"], s["covariance"])
        return FeatureSet(found, kept["features"], kept["indices"], None, kept["labels"])

    def images_at(first: int, last: int) -> Tensor:
        return source.batch(chosen[first:last])[0]

    labels = source.labels.cpu()[chosen] if source.spec.classes else None
    found = features_of(
        [extractor], len(chosen), images_at, labels, batch_size, group, advance, KEPT, with_logits=False
    )[extractor.name]  # fmt: skip
    found.indices = chosen[found.indices]
    if write:
        s = found.statistics
        content = {
            "statistics": {"n": s.n, "mean": s.mean, "covariance": s.covariance},
            "features": found.features,
            "indices": found.indices,
            "labels": found.labels,
        }
        cache.write(folder, f"reference-{extractor.name}", key, content, say)
    return found


# metrics --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """One entry of ``metrics=``.

    compute  (samples, reference, classes) -> named values, the first one is what a table shows first.
    needs    "logits": class scores; "labels": samples asked for as a class and labelled reference images;
             "own labels": also class scores that are those of the data; "modes": an extractor that knows the data's modes.
    higher   whether higher is better.
    paper    its source.      protocol  (samples, reference) -> what the number depends on besides.
    also     values besides the first that belong into the log of a run.
    """

    title: str
    compute: Callable[[FeatureSet, FeatureSet, int], dict[str, Any]]
    higher: bool
    paper: str
    needs: tuple[str, ...] = ()
    protocol: Callable[[FeatureSet, FeatureSet], dict[str, Any]] = lambda fake, real: {}
    also: tuple[str, ...] = ()


def _fid(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    return {"frechet": frechet(fake.statistics, real.statistics)}


def _kid(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    return dict(zip(("kid", "kid_std"), kernel_distance(fake.features, real.features), strict=True))


def _is(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    return dict(zip(("is", "is_std"), inception_score(fake.logits), strict=True))


def _as_many(fake: FeatureSet, real: FeatureSet) -> tuple[Tensor, Tensor]:
    """As many features of either side, a fixed random part of the larger: how far a manifold reaches depends on their number."""
    n = min(len(fake.features), len(real.features))
    chosen = torch.randperm(max(len(fake.features), len(real.features)), generator=torch.Generator().manual_seed(2))[:n]
    return tuple(x if len(x) == n else x[chosen] for x in (fake.features, real.features))


def _pr(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    return dict(zip(("precision", "recall"), precision_recall(*_as_many(fake, real)), strict=True))


def _dc(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    return dict(zip(("density", "coverage"), density_coverage(*_as_many(fake, real)), strict=True))


def _intra(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    mean, values = intra_class_frechet(fake.features, fake.labels, real.features, real.labels, classes)
    return {"intra_frechet": mean, "per_class": values}


def _recognised(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    return {"recognised": (fake.logits.argmax(dim=1) == fake.labels).double().mean().item()}


def _modes(fake: FeatureSet, real: FeatureSet, classes: int) -> dict[str, Any]:
    covered, share, kl = mode_coverage(fake.logits)
    return {"modes_covered": float(covered), **({"high_quality": share} if fake.rejects else {}), "kl": kl}


def _of_manifolds(neighbours: int) -> Callable[[FeatureSet, FeatureSet], dict[str, Any]]:
    def protocol(fake: FeatureSet, real: FeatureSet) -> dict[str, Any]:
        n = min(len(fake.features), len(real.features))
        return {"samples": n, "reference_images": n, "neighbours": neighbours}

    return protocol


def _pairs(fake: FeatureSet, real: FeatureSet) -> dict[str, Any]:
    return {"samples": len(fake.features), "reference_images": len(real.features)}


def _of_kid(fake: FeatureSet, real: FeatureSet) -> dict[str, Any]:
    size = kid_subset_size(len(fake.features), len(real.features))
    return {**_pairs(fake, real), "subsets": 100, "subset_size": size, "kernel": "(x.y/d + 1)^3", "seed": 2020}


def _of_fid(fake: FeatureSet, real: FeatureSet) -> dict[str, Any]:
    return {"samples": fake.statistics.n, "reference_images": real.statistics.n}


METRICS: dict[str, Metric] = {
    "fid": Metric("Frechet distance", _fid, False, "arXiv:1706.08500", protocol=_of_fid),
    "kid": Metric("kernel distance", _kid, False, "arXiv:1801.01401", protocol=_of_kid),
    "is": Metric("inception score", _is, True, "arXiv:1606.03498", ("logits",),
                 lambda fake, real: {"samples": len(fake.features), "splits": 10, "seed": 2020}),
    "pr": Metric("precision, recall", _pr, True, "arXiv:1904.06991", protocol=_of_manifolds(3)),
    "dc": Metric("density, coverage", _dc, True, "arXiv:2002.09797", protocol=_of_manifolds(5)),
    "intra": Metric("intra-class Frechet distance", _intra, False, "mean of fid over classes", ("labels",), _pairs),
    "recognised": Metric("recognised as their label", _recognised, True, "share of samples", ("labels", "own labels"),
                         lambda fake, real: {"samples": len(fake.features)}),
    "modes": Metric("modes covered", _modes, True, "arXiv:1611.02163, arXiv:1705.07761", ("modes",),
                    lambda fake, real: {"samples": len(fake.features), "modes": fake.logits.shape[1], "kl": "to uniform, nats"},
                    also=("high_quality", "kl")),
}  # fmt: skip


def obstacle(metric: str, extractor: Extractor, labelled: bool) -> str | None:
    """Why ``metric`` cannot be computed with ``extractor`` (None: it can). ``labelled``: samples and reference have labels."""
    needs = METRICS[metric].needs
    if "labels" in needs and not labelled:
        return f"metrics={metric} needs labelled reference images and samples of given classes (a class-conditional model)"
    if "logits" in needs and not extractor.logits:
        return f"metrics={metric} needs class scores and extractor={extractor.name} has none"
    if "own labels" in needs and not (extractor.logits and extractor.labels):
        return f"metrics={metric} needs an extractor that knows the data's classes, and extractor={extractor.name} does not"
    if "modes" in needs and not extractor.modes:
        return f"metrics={metric} needs data whose modes are known, and extractor={extractor.name} knows none"
    return None


PUBLISHED_NAMES = {"frechet": "FID", "kid": "KID", "is": "IS", "intra_frechet": "intra-class FID"}


def named(metric: str, extractor: str) -> str:
    """What people call a metric with an extractor: FID, KID and IS are those of the Inception network."""
    title = METRICS[metric].title
    return f"{title} of Inception features ({metric.upper()})" if extractor == "inception" else f"{title} ({extractor})"


def column(value: str, extractor: str) -> str:
    """The short name of one of a metric's values: FID with Inception, else frechet."""
    return PUBLISHED_NAMES.get(value, value) if extractor == "inception" else value


def scores(
    pairs: Sequence[tuple[str, str]], fake: Mapping[str, FeatureSet], real: Mapping[str, FeatureSet], classes: int, strict: bool
) -> list[dict[str, Any]]:
    """One entry for each (metric, extractor) of ``pairs``: plain values with their protocol.

    With too few images for a metric: UserError if ``strict``, else no values and the reason under "missing".
    """
    found = []
    for metric, extractor in pairs:
        entry, ours, theirs = METRICS[metric], fake[extractor], real[extractor]
        about = {
            "metric": metric, "extractor": extractor, "name": named(metric, extractor),
            "better": "higher" if entry.higher else "lower",
        }  # fmt: skip
        try:
            values = entry.compute(ours, theirs, classes)
            found.append({**about, "values": values, "protocol": {**entry.protocol(ours, theirs), "source": entry.paper}})
        except TooFew as error:
            if strict:
                raise UserError(f"metrics={metric}: {error}") from error
            found.append({**about, "values": {}, "missing": str(error)})
    return found
