"""Points of the plane in known modes: which of them a model finds can be counted. Nothing to read, nothing to download.

``ring``        8 Gaussians on a circle of radius 1, sigma 0.01 (arXiv:1611.02163, 1712.04086).
``grid``        25 Gaussians at (-4, -2, 0, 2, 4)^2, sigma 0.05 (arXiv:1705.07761, 1712.04086).
``swiss_roll``  the spiral (t cos t, t sin t), t from 1.5 pi to 4.5 pi, with Gaussian noise of sigma 0.25 across it (the curve of
                arXiv:1704.00028). Here it is filled evenly along its length, and twenty arcs of equal length are its modes.

Each is then scaled as a whole so that its points lie within [-0.9, 0.9]. Every mode is equally
likely. A point is stored as an "image" of one pixel with two channels, so that the driver has one path for all data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from data.options import DatasetOptions, refuse
from data.source import DataSource, Spec
from errors import UserError, nearest

COUNT, SEED = 50_000, 0
EXTENT = 0.9  # of the scaled points in each direction
REACH = 4.75  # sigmas beyond the outermost anchors that this has room for: hardly one of 50,000 points strays farther
ARCS, ANCHORS_AN_ARC = 20, 100  # neighbours on the curve are a fifth of sigma apart: as good as the curve itself


@dataclass(frozen=True)
class Geometry:
    """Where the points of a set lie.

    anchors  (M, 2) float32: centres of the Gaussians, or points close together along a curve, in the order of its length.
    mode_of  (M,) int64: the mode in 0 .. modes - 1 that each anchor belongs to; every mode has equally many.
    sigma    standard deviation of the noise in each of its directions.
    normals  (M, 2) float32 unit vectors across the curve, along which its noise goes; None: noise in both coordinates.
    """

    anchors: Tensor
    mode_of: Tensor
    sigma: float
    normals: Tensor | None = None

    @property
    def modes(self) -> int:
        """Number of modes."""
        return int(self.mode_of[-1]) + 1

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, 2) float32 points."""
        which = torch.randint(len(self.anchors), (n,), generator=generator)
        if self.normals is None:
            return self.anchors[which] + self.sigma * torch.randn(n, 2, generator=generator)
        along = torch.rand(n, 1, generator=generator) - 0.5  # between an anchor and halfway to its neighbours
        step = torch.stack([self.normals[:, 1], -self.normals[:, 0]], dim=1)[which] * self._spacing
        return self.anchors[which] + along * step + self.sigma * torch.randn(n, 1, generator=generator) * self.normals[which]

    @property
    def _spacing(self) -> Tensor:
        return (self.anchors[1:] - self.anchors[:-1]).norm(dim=1).mean()

    def distances(self, points: Tensor) -> Tensor:
        """(n, modes): from points (n, 2) to the nearest anchor of each mode, in units of sigma."""
        anchors = self.anchors.to(points)
        # not as |a|^2 + |b|^2 - 2ab, whose rounding would be of the size of sigma^2
        found = torch.cdist(points, anchors, compute_mode="donot_use_mm_for_euclid_dist") / self.sigma
        return found.view(len(points), self.modes, -1).amin(dim=2)


def _scaled(anchors: Tensor, mode_of: Tensor, sigma: float, normals: Tensor | None = None) -> Geometry:
    scale = EXTENT / (float(anchors.abs().max()) + REACH * sigma)
    return Geometry((scale * anchors).float(), mode_of, scale * sigma, None if normals is None else normals.float())


def _ring() -> Geometry:
    angles = torch.arange(8, dtype=torch.float64) * (2 * math.pi / 8)
    return _scaled(torch.stack([angles.cos(), angles.sin()], dim=1), torch.arange(8), 0.01)


def _grid() -> Geometry:
    line = torch.arange(-4, 5, 2, dtype=torch.float64)
    return _scaled(torch.cartesian_prod(line, line), torch.arange(25), 0.05)


def _swiss_roll() -> Geometry:
    m = ARCS * ANCHORS_AN_ARC
    fine = torch.linspace(1.5 * math.pi, 4.5 * math.pi, 100_001, dtype=torch.float64)
    length = ((1 + fine.square()).sqrt() * fine + fine.asinh()) / 2  # of the curve up to t, in closed form
    wanted = length[0] + (length[-1] - length[0]) * (torch.arange(m, dtype=torch.float64) + 0.5) / m
    right = torch.searchsorted(length, wanted)
    share = (wanted - length[right - 1]) / (length[right] - length[right - 1])
    t = torch.lerp(fine[right - 1], fine[right], share)
    tangents = torch.stack([t.cos() - t * t.sin(), t.sin() + t * t.cos()], dim=1) / (1 + t.square()).sqrt().unsqueeze(1)
    normals = torch.stack([-tangents[:, 1], tangents[:, 0]], dim=1)
    anchors = torch.stack([t * t.cos(), t * t.sin()], dim=1)
    return _scaled(anchors, torch.arange(m) // ANCHORS_AN_ARC, 0.25, normals)


GEOMETRIES: dict[str, Callable[[], Geometry]] = {"ring": _ring, "grid": _grid, "swiss_roll": _swiss_roll}


@cache
def geometry(name: str) -> Geometry:
    """The geometry of ``dataset=<name>``: always the same. UserError for a name that is none of :data:`GEOMETRIES`."""
    if name not in GEOMETRIES:
        raise UserError(f"dataset={name}: its points have no known modes, {nearest(name, GEOMETRIES)}")
    return GEOMETRIES[name]()


def build(options: DatasetOptions) -> DataSource:
    """50,000 points (50,000, 2, 1, 1) float32 of the geometry ``options.name``, unlabelled, the same at every start."""
    refuse(options, f"dataset={options.name} makes its own points", "path", "resolution", "pad_to", "xflip")
    points = geometry(options.name).draw(COUNT, torch.Generator().manual_seed(SEED))
    spec = Spec(options.name, resolution=1, channels=2, classes=0, kind="points")
    return DataSource(points.view(COUNT, 2, 1, 1), torch.full((COUNT,), -1), spec)
