"""Randomness as a function of (seed, step, phase, repeat, purpose): nothing about it is ever saved.

Per-sample draws are made for the whole global batch on the CPU and then sliced, so that neither the number of processes
nor the micro-batch size changes what a sample gets, and a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import torch
from torch import Tensor


def key(*parts: object) -> int:
    """A 63-bit seed from any mix of ints and strings, the same on every machine and in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: object) -> torch.Generator:
    """A CPU generator seeded with :func:`key`."""
    return torch.Generator().manual_seed(key(*parts))


def reseed_layers(*parts: object) -> None:
    """Seed torch's default generators (CPU and devices), from which dropout and layer noise draw.

    As ``torch.manual_seed``, which also notes a stack trace for every kind of device that is not in use: a millisecond.
    """
    seed = key("layers", *parts)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


class Draws:
    """The per-sample draws of one global batch of ``n`` samples."""

    def __init__(self, seed: int, step: int, phase: str, repeat: int, n: int):
        self.parts = (seed, step, phase, repeat)
        self.n = n
        self._cache: dict[tuple, Tensor] = {}  # micro-batches slice the same tensor

    def draw(self, purpose: str, shape: int | tuple[int, ...] = (), kind: str = "normal", high: int = 0) -> Tensor:
        """(n, *shape) on the CPU; kinds as in ``Batch.draw``."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        asked = (purpose, shape, kind, high)
        if asked not in self._cache:
            rng = generator(*self.parts, purpose)
            if kind == "normal":
                values = torch.randn(self.n, *shape, generator=rng)
            elif kind == "uniform":
                values = torch.rand(self.n, *shape, generator=rng)
            elif kind == "integer":
                if high < 1:
                    raise ValueError(f"draw({purpose!r}, kind='integer') needs high >= 1, got {high}")
                values = torch.randint(high, (self.n, *shape), generator=rng)
            else:
                raise ValueError(f"draw({purpose!r}): kind is 'normal', 'uniform' or 'integer', got {kind!r}")
            self._cache[asked] = values
        return self._cache[asked]


class Reals:
    """Which real images a phase sees: without replacement within an epoch, an own stream for each phase and repeat.

    Position p of a stream is entry p % size of the permutation keyed by (seed, phase, repeat, p // size). Where a stream
    stands follows from the clock alone (images seen times the phase's batch scale).
    """

    def __init__(self, seed: int, size: int):
        self.seed, self.size = seed, size
        self._permutations: OrderedDict[tuple, Tensor] = OrderedDict()

    def _permutation(self, phase: str, repeat: int, epoch: int) -> Tensor:
        which = (phase, repeat, epoch)
        if which not in self._permutations:
            rng = generator(self.seed, "reals", *which)
            self._permutations[which] = torch.randperm(self.size, generator=rng)
            if len(self._permutations) > 32:
                self._permutations.popitem(last=False)
        self._permutations.move_to_end(which)
        return self._permutations[which]

    def indices(self, phase: str, repeat: int, position: int, n: int) -> Tensor:
        """(n,) int64 indices of the images at ``position`` … ``position + n - 1`` of the stream."""
        parts = []
        while n > 0:
            epoch, start = divmod(position, self.size)
            take = min(n, self.size - start)
            parts.append(self._permutation(phase, repeat, epoch)[start : start + take])
            position, n = position + take, n - take
        return torch.cat(parts)


def latents(seed: int, first: int, n: int, z_dim: int) -> Tensor:
    """Latents (n, z_dim) of the samples ``first`` … ``first + n - 1`` under ``seed``, each a function of its number alone."""
    return torch.stack([torch.randn(z_dim, generator=generator(seed, "sample", i)) for i in range(first, first + n)])
