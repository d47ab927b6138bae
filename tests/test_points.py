"""Points of the plane and stacked digits: frozen geometries, the store of float points, and what they refuse."""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

import data
from data import DatasetOptions, DataSource, Spec
from data.points import GEOMETRIES, geometry
from data.stacked_digits import chosen
from errors import UserError

SETS = [*GEOMETRIES]


@pytest.fixture(scope="module")
def sources():
    return {name: data.build(DatasetOptions(name)) for name in SETS}


# geometries -----------------------------------------------------------------------------------------------------------


def test_ring_has_the_proportions_of_the_papers():
    g = geometry("ring")
    radii, gaps = g.anchors.norm(dim=1), (g.anchors - g.anchors.roll(1, 0)).norm(dim=1)
    assert g.modes == 8 and g.mode_of.tolist() == list(range(8))
    assert torch.allclose(radii, radii[:1].expand(8)) and torch.allclose(gaps, gaps[:1].expand(8), atol=1e-6)
    assert g.sigma / float(radii[0]) == pytest.approx(0.01)


def test_grid_has_the_proportions_of_the_papers():
    g = geometry("grid")
    spacing = float(g.anchors[1, 1] - g.anchors[0, 1])
    lattice = (g.anchors / spacing).round()
    assert g.modes == 25 and len(lattice.unique(dim=0)) == 25 and lattice.abs().max() == 2
    assert torch.allclose(lattice * spacing, g.anchors, atol=1e-6)
    assert g.sigma / spacing == pytest.approx(0.025)


def test_arcs_of_the_swiss_roll_are_equally_long():
    g = geometry("swiss_roll")
    assert g.modes == 20 and g.mode_of.bincount().tolist() == [100] * 20
    steps = (g.anchors[1:] - g.anchors[:-1]).norm(dim=1)
    assert steps.max() / steps.min() < 1.001  # uniform in arc length
    scale = float(g.anchors.norm(dim=1).max()) / (4.5 * math.pi)
    a, b = 1.5 * math.pi, 4.5 * math.pi
    whole = scale * sum(s * (t * math.sqrt(1 + t * t) + math.asinh(t)) / 2 for t, s in ((a, -1), (b, 1)))
    assert float(steps.sum()) * 2000 / 1999 == pytest.approx(whole, rel=1e-3)
    angle = torch.atan2(g.anchors[:, 1], g.anchors[:, 0]).double()
    t = g.anchors.norm(dim=1).double() / scale
    assert torch.cos(t - angle).min() > 0.9999  # r = t: Archimedes' spiral
    assert (g.normals[1:-1] * (g.anchors[2:] - g.anchors[:-2])).sum(dim=1).abs().max() < 1e-4
    assert torch.allclose(g.normals.norm(dim=1), torch.ones(2000))
    assert float(steps.mean()) < 0.2 * g.sigma


@pytest.mark.parametrize("name", SETS)
def test_distances_are_to_the_nearest_anchor_of_each_mode(name):
    g = geometry(name)
    points = torch.rand(7, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = g.distances(points)
    assert found.shape == (7, g.modes)
    for i, k in ((0, 0), (3, 5), (6, g.modes - 1)):
        expected = (g.anchors[g.mode_of == k].double() - points[i].double()).norm(dim=1).min() / g.sigma
        assert float(found[i, k]) == pytest.approx(float(expected), rel=1e-5)
    assert g.distances(g.anchors)[torch.arange(len(g.anchors)), g.mode_of].abs().max() == 0


def test_unknown_geometry():
    with pytest.raises(UserError, match="dataset=rings: its points have no known modes, did you mean 'ring'?"):
        geometry("rings")


# the data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_points_are_as_the_geometry_says(sources, name):
    source, g = sources[name], geometry(name)
    assert source.spec == Spec(name, 1, 2, 0, kind="points")
    assert source.images.shape == (50_000, 2, 1, 1) and source.images.dtype == torch.float32
    assert 0.85 < source.images.abs().max() < 0.9
    distances = g.distances(source.images.flatten(1))
    nearest = distances.min(dim=1)
    near = 1 - math.exp(-4.5) if g.normals is None else math.erf(3 / math.sqrt(2))  # noise in two directions, or in one
    assert nearest.values.le(3).double().mean() == pytest.approx(near, abs=0.002)
    counts = nearest.indices.bincount(minlength=g.modes).double() / 50_000
    assert (counts * g.modes - 1).abs().max() < 0.1
    if g.normals is None:
        noise = source.images.flatten(1) - g.anchors[nearest.indices]
        assert torch.allclose(noise.std(dim=0), torch.full((2,), g.sigma), rtol=0.02) and noise.mean(dim=0).abs().max() < 2e-4


def test_noise_of_the_swiss_roll_goes_across(sources):
    g = geometry("swiss_roll")
    points = sources["swiss_roll"].images.flatten(1)
    offsets = points.unsqueeze(1)[:2000] - g.anchors
    which = offsets.norm(dim=2).argmin(dim=1)
    offsets = offsets[torch.arange(2000), which]
    across = (offsets * g.normals[which]).sum(dim=1)
    assert float(across.std()) == pytest.approx(g.sigma, rel=0.05)
    assert float((offsets.square().sum(dim=1) - across.square()).mean().sqrt()) < 0.1 * g.sigma


def test_the_same_at_every_start(sources):
    again = data.build(DatasetOptions("grid"))
    assert torch.equal(again.images, sources["grid"].images) and again.content_hash == sources["grid"].content_hash
    assert len({source.content_hash for source in sources.values()}) == 3
    moved = DataSource(again.images.clone(), again.labels, again.spec)
    moved.images[49_999, 1] += 1e-6
    assert moved.content_hash != again.content_hash


def test_store_of_points(sources):
    source = sources["ring"]
    points, labels = source.batch(torch.tensor([3, 1]))
    assert labels is None and torch.equal(points, source.images[[3, 1]])
    assert data.to_float(points) is points and data.to_stored(points, "points") is points
    assert source.unlabelled().spec.kind == "points" and source.report() == []
    with pytest.raises(ValueError, match="points must be torch.float32"):
        DataSource(source.images.double(), source.labels, source.spec)
    with pytest.raises(ValueError, match="images must be torch.uint8"):
        DataSource(source.images, source.labels, replace(source.spec, kind="images"))
    assert torch.equal(data.to_stored(torch.tensor([-1.0, 1.0]), "images"), torch.tensor([0, 255], dtype=torch.uint8))


def test_memory_is_counted_in_bytes(sources):
    source = sources["ring"]
    for gigabytes, fits in ((100_000 * 4 / 1e9, True), (100_000 * 3 / 1e9, False)):
        limited = DataSource(source.images, source.labels, source.spec, options=DatasetOptions("ring", memory_gb=gigabytes))
        assert limited.fits(torch.device("cpu")) is fits


@pytest.mark.parametrize(
    "options, message",
    [
        ({"path": "x.zip"}, "dataset.path=x.zip: dataset=ring makes its own points and has no use for it; leave it unset"),
        ({"resolution": 16}, "dataset.resolution=16: dataset=ring makes its own points"),
        ({"pad_to": 8}, "dataset.pad_to=8: dataset=ring makes its own points"),
        ({"xflip": True}, "dataset.xflip=true: dataset=ring makes its own points"),
        ({"name": "stacked_digits", "path": "x"}, "dataset.path=x: dataset=stacked_digits ships with scikit-learn"),
        ({"name": "stacked_digits", "pad_to": 32}, "dataset.pad_to=32: dataset=stacked_digits"),
    ],
)
def test_refused(options, message):
    with pytest.raises(UserError) as error:
        data.build(DatasetOptions(**{"name": "ring", **options}))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


# stacked digits -------------------------------------------------------------------------------------------------------


def test_stacked_digits():
    source = data.build(DatasetOptions("stacked_digits"))
    digits, which = data.build(DatasetOptions("digits")), chosen()
    assert source.spec == Spec("stacked_digits", 16, 3, 0) and source.images.shape == (50_000, 3, 16, 16)
    for i in (0, 1234, 49_999):
        assert torch.equal(source.images[i], digits.images[which[i], 0])
    target = torch.from_numpy(load_digits().target)[which]
    counts = (target * torch.tensor([100, 10, 1])).sum(dim=1).bincount(minlength=1000)
    assert counts.min() > 15 and counts.max() < 100  # every number is there
    assert data.build(DatasetOptions("stacked_digits")).content_hash == source.content_hash
    assert data.build(DatasetOptions("stacked_digits", resolution=8)).spec.resolution == 8
