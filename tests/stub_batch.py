"""A micro-batch for phases without a driver, and the description of data that models are built for."""

from __future__ import annotations

from types import SimpleNamespace

import torch


def spec(resolution=8, channels=1, classes=3, kind="images", name="toy"):
    """What a model has to know of its data."""
    return SimpleNamespace(resolution=resolution, channels=channels, classes=classes, kind=kind, name=name)


def images(n=4, resolution=16, channels=1, seed=5):
    """(n, channels, resolution, resolution), uniform in [-1, 1)."""
    return torch.rand(n, channels, resolution, resolution, generator=torch.Generator().manual_seed(seed)) * 2 - 1


class StubBatch:
    """One micro-batch with given images, labels and draws; records reports, what was augmented and what was shared.

    with_graph  purpose of a draw or an augmentation -> whether a graph was being built there.
    reseeded    purposes of ``reseed_layers``, in order.
    """

    def __init__(self, images, labels=None, draws=None, grad_scale=1.0):
        self.images, self.labels, self.draws, self.grad_scale = images, labels, draws or {}, grad_scale
        self.shared, self.reports, self.augmented, self.with_graph, self.reseeded = {}, {}, {}, {}, []

    def draw(self, purpose, shape=(), kind="normal", high=0):
        self.with_graph[purpose] = torch.is_grad_enabled()
        shape = (shape,) if isinstance(shape, int) else shape
        if purpose not in self.draws:
            generator = torch.Generator().manual_seed(sum(map(ord, purpose)))
            sample = torch.rand if kind == "uniform" else torch.randn
            self.draws[purpose] = sample(len(self.images), *shape, generator=generator)
        return self.draws[purpose]

    def augment(self, images, purpose):
        self.augmented[purpose] = images
        self.with_graph[purpose] = torch.is_grad_enabled()
        return images

    def reseed_layers(self, purpose):
        self.reseeded.append(purpose)
        torch.manual_seed(sum(map(ord, purpose)))

    def share(self, **tensors):
        """The phases that use the same stub as their batch find them in ``shared``."""
        self.shared.update(tensors)

    def report(self, name, value, reduce="mean"):
        assert not value.requires_grad and value.dtype == torch.float32
        self.reports[name] = value
