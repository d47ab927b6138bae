"""Distances: equal to torch-fidelity's on the same files, right in closed form, the same however the work is cut."""

import math

import numpy as np
import pytest
import tiny_extractor
import torch
from torch_fidelity import calculate_metrics

from metrics.distances import (
    RunningStatistics,
    density_coverage,
    frechet,
    inception_score,
    intra_class_frechet,
    kernel_distance,
    nearest,
    precision_recall,
    statistics,
)
from metrics.extractors import Request, make
from metrics.score import METRICS, FeatureSet, Group, features_of
from training.pictures import ImageFolderWriter

CPU = torch.device("cpu")


def images(n, seed, channels=3, size=16):
    """Blobs whose mean and contrast depend on the seed, uint8."""
    rng = torch.Generator().manual_seed(seed)
    x = 90 + 10 * seed + (25 + 9 * seed) * torch.randn(n, channels, size, size, generator=rng)
    x = x + 40 * torch.randn(n, 1, 1, 1, generator=rng)
    return x.clamp(0, 255).to(torch.uint8)


def as_files(folder, uint8):
    with ImageFolderWriter(folder) as writer:
        writer.write(uint8.permute(0, 2, 3, 1).numpy())
    return str(folder)


def seen(uint8, batch_size=50, **more):
    tiny = make("tiny", Request(None, CPU))
    return features_of([tiny], len(uint8), lambda a, b: uint8[a:b], batch_size=batch_size, **more)["tiny"]


@pytest.fixture(scope="module")
def pair():
    return images(130, 1), images(110, 2)


@pytest.fixture(scope="module")
def theirs(pair, tmp_path_factory):
    folders = [as_files(tmp_path_factory.mktemp("images") / name, part) for name, part in zip("ab", pair)]
    return calculate_metrics(
        input1=folders[0], input2=folders[1], feature_extractor="tiny", fid=True, kid=True, isc=True, prc=True, cuda=False,
        kid_subset_size=55, cache=False, verbose=False, save_cpu_ram=True,
    )  # fmt: skip


@pytest.mark.parametrize("batch_size", [1, 7, 50])
def test_equal_to_torch_fidelity_on_the_same_files(pair, theirs, batch_size):
    fake, real = (seen(part, batch_size) for part in pair)
    found = {}
    for metric in ("fid", "kid", "is"):
        found |= METRICS[metric].compute(fake, real, 0)
    found |= dict(zip(("precision", "recall"), precision_recall(fake.features, real.features)))
    pairs = {
        "frechet": "frechet_inception_distance", "precision": "precision", "recall": "recall", "is": "inception_score_mean",
        "is_std": "inception_score_std", "kid": "kernel_inception_distance_mean", "kid_std": "kernel_inception_distance_std",
    }  # fmt: skip
    assert theirs["frechet_inception_distance"] > 0.1 and theirs["precision"] not in (0, 1)
    for ours, other in pairs.items():
        assert found[ours] == pytest.approx(theirs[other], rel=1e-5, abs=1e-5), ours
    assert METRICS["kid"].protocol(fake, real)["subset_size"] == 55  # min(1000, n / 2), stated


def test_gray_images_are_those_repeated_to_rgb():
    gray = images(20, 1, channels=1)
    assert torch.equal(seen(gray).features, seen(gray.repeat(1, 3, 1, 1)).features)


def test_two_gaussians_in_closed_form():
    """Diagonal covariances: |mu_1 - mu_2|^2 + sum (sigma_1 - sigma_2)^2, on samples whose moments are exact."""
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(400, 3, generator=rng, dtype=torch.float64)
    z = z - z.mean(dim=0)
    z = z @ torch.linalg.inv(torch.linalg.cholesky(z.T @ z / 399)).T  # mean 0, covariance the identity
    s1, s2, m1, m2 = torch.tensor([[1.0, 2.0, 0.5], [0.2, 2.0, 3.0], [0.0, 1.0, 100.0], [1.0, -1.0, 97.0]]).double()
    wanted = ((m1 - m2) ** 2).sum() + ((s1 - s2) ** 2).sum()
    found = frechet(statistics(z * s1 + m1), statistics(z * s2 + m2))
    assert found == pytest.approx(wanted.item(), rel=1e-9)
    assert frechet(statistics(z), statistics(z)) == pytest.approx(0, abs=1e-6)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=rng, dtype=torch.float64)).Q  # full covariances, the same distance
    found = frechet(statistics((z * s1 + m1) @ turn), statistics((z * s2 + m2) @ turn))
    assert found == pytest.approx(wanted.item(), rel=1e-9)


def test_statistics_come_in_parts():
    rng = torch.Generator().manual_seed(0)
    features = 1000 + torch.randn(500, 8, generator=rng)
    running = RunningStatistics()
    for part in features.split(37):
        running.add(part)
    found = running.result()
    assert found.n == 500
    np.testing.assert_allclose(found.mean, features.double().mean(dim=0), rtol=1e-12)
    np.testing.assert_allclose(found.covariance, np.cov(features.double().numpy(), rowvar=False), rtol=1e-9)


def test_processes_share_the_work(pair):
    """Three processes, played one after the other: what each hands in is what one process alone would see there."""
    uint8, handed_in = pair[0][:101], []
    for rank in range(3):

        def gather(part, n):
            handed_in.append(part)
            return torch.zeros(n, *part.shape[1:])

        seen(uint8, 10, group=Group(lambda n, rank=rank: (n * rank // 3, n * (rank + 1) // 3), gather))
    features = torch.cat(handed_in[::2])  # each process: features, then logits
    assert torch.allclose(features, seen(uint8).features, atol=1e-5) and len(features) == 101


def test_a_chunk_smaller_than_the_group(pair):
    shapes = []

    def gather(part, n):
        shapes.append(tuple(part.shape))
        return torch.zeros(n, *part.shape[1:])

    seen(pair[0][:2], group=Group(lambda n: (n, n), gather))
    assert shapes == [(0, 12), (0, 5)]


def test_most_keeps_some_features_and_all_statistics(pair):
    whole, some = seen(pair[0]), seen(pair[0], most=40)
    assert some.features.shape == (40, 12) and torch.equal(some.features, whole.features[some.indices])
    assert torch.equal(some.statistics.covariance, whole.statistics.covariance)
    assert len(some.indices.unique()) == 40 and some.indices.max() > 100  # not just the first


def test_precision_and_recall_know_their_sides():
    """A model of one of two modes: precise, but half is missing; the other way round for one that also makes garbage."""
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(200, 4, generator=rng), 50 + torch.randn(200, 4, generator=rng)
    more = torch.randn(200, 4, generator=rng)
    precision, recall = precision_recall(more, torch.cat([left, right]))
    assert precision > 0.8 and 0.4 < recall < 0.55
    precision, recall = precision_recall(torch.cat([more, right]), left)
    assert 0.4 < precision < 0.55 and recall > 0.8


@pytest.mark.parametrize("metric", ["pr", "dc"])
def test_manifolds_are_of_as_many_images(pair, metric):
    """130 against 110: a fixed random part of the larger side, and it is stated."""
    entry, (fake, real) = METRICS[metric], (seen(part) for part in pair)
    protocol = entry.protocol(fake, real)
    assert protocol["samples"] == protocol["reference_images"] == 110
    found, function = entry.compute(fake, real, 0), {"pr": precision_recall, "dc": density_coverage}[metric]
    assert found == entry.compute(fake, real, 0)
    assert tuple(found.values()) != function(fake.features, real.features)
    swapped = entry.compute(real, fake, 0)
    if metric == "pr":
        assert (swapped["precision"], swapped["recall"]) == (found["recall"], found["precision"])


def brute_density_coverage(fake, real, k):
    def distance(a, b):
        return math.dist(a.tolist(), b.tolist())

    radii = [sorted(distance(r, other) for j, other in enumerate(real) if j != i)[k - 1] for i, r in enumerate(real)]
    inside = sum(distance(f, r) < radius for f in fake for r, radius in zip(real, radii))
    covered = sum(any(distance(f, r) < radius for f in fake) for r, radius in zip(real, radii))
    return inside / (k * len(fake)), covered / len(real)


def test_density_and_coverage_by_definition(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    real, fake = torch.randn(60, 3, generator=rng), 0.7 * torch.randn(45, 3, generator=rng) + 0.4
    wanted = brute_density_coverage(fake, real, 5)
    assert density_coverage(fake, real) == pytest.approx(wanted)
    monkeypatch.setattr("metrics.distances.BLOCK", 7)
    assert density_coverage(fake, real) == pytest.approx(wanted)
    assert density_coverage(real + 100, real) == (0, 0)
    assert density_coverage(real[:30], real, k=5)[1] > 0.9


def test_intra_class_distance_sees_swapped_classes():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    real = torch.randn(300, 2, generator=rng) + 5 * labels[:, None]
    fake = torch.randn(300, 2, generator=rng) + 5 * labels[:, None]
    good, each = intra_class_frechet(fake, labels, real, labels, 3)
    assert good < 0.3 and len(each) == 3 and good == pytest.approx(sum(each) / 3)
    assert intra_class_frechet(fake, (labels + 1) % 3, real, labels, 3)[0] > 40
    assert frechet(statistics(fake), statistics(real)) < 0.3  # the plain distance does not see it
    with pytest.raises(ValueError, match="class 3 has 0 samples"):
        intra_class_frechet(fake, labels, real, labels, 4)


def test_inception_score_in_closed_form():
    """Sure of each of 8 classes in equal shares: 8; the same scores for all: 1."""
    sure = 100 * torch.eye(8).repeat(400, 1)
    assert inception_score(sure)[0] == pytest.approx(8, rel=0.05)  # shares differ a little between the splits
    assert inception_score(sure, splits=1)[0] == pytest.approx(8, rel=1e-6)
    assert inception_score(torch.ones(50, 8))[0] == pytest.approx(1)


def test_kernel_distance_of_a_set_with_itself_is_about_zero():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 6, generator=rng), torch.randn(400, 6, generator=rng)
    near, far = kernel_distance(x, y)[0], kernel_distance(x, y + 1)[0]
    assert abs(near) < 0.05 < 0.5 < far


def test_nearest():
    references = torch.tensor([[0.0], [1.0], [5.0], [1.5]])
    distances, indices = nearest(torch.tensor([[1.1], [4.0]]), references, k=2)
    assert indices.tolist() == [[1, 3], [2, 3]] and torch.allclose(distances, torch.tensor([[0.1, 0.4], [1.0, 2.5]]))
    assert nearest(references, references, but=torch.arange(4))[1].flatten().tolist() == [1, 3, 3, 1]


@pytest.mark.parametrize("metric", ["kid", "is", "pr", "dc"])
def test_too_few_images(metric):
    few = torch.randn(3, 4)
    x = FeatureSet(statistics(few), few, torch.arange(3), few)
    with pytest.raises(ValueError, match="need"):
        METRICS[metric].compute(x, x, 0)


def test_one_image_has_no_covariance():
    with pytest.raises(ValueError, match="at least 2 images, got 1"):
        statistics(torch.randn(1, 4))


def test_extraction_leaves_no_trace(pair):
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    seen(pair[0][:60], 7)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    assert not any(module.training for module in tiny_extractor.Tiny.made[-1].modules())
