"""GANs of a few hundred parameters that use every part of the interface, and what tests need to drive them.

Each toy is one class and its options; none of them needs a line in the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import data
import gans
from data import DataSource, Spec
from gans.base import GAN, Batch, Clock, Phase


def generator(z_dim: int, spec: Spec) -> nn.Sequential:
    shape = (spec.channels, spec.resolution, spec.resolution)
    return nn.Sequential(nn.Linear(z_dim, 5), nn.Tanh(), nn.Linear(5, shape[0] * shape[1] * shape[2]), nn.Unflatten(1, shape))


def discriminator(spec: Spec, dropout: float = 0.0) -> nn.Sequential:
    pixels = spec.channels * spec.resolution**2
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 6), nn.Softplus(), nn.Dropout(dropout), nn.Linear(6, 1), nn.Flatten(0))


class Toy(GAN):
    """One generator, one discriminator, the configured loss; what the toys below have in common."""

    z_dim = 4

    def __init__(self, options, spec, loss, penalty):
        super().__init__()
        self.options, self.spec, self.loss = options, spec, loss
        self.generator = generator(self.z_dim, spec)
        self.discriminator = discriminator(spec, getattr(options, "dropout", 0.0))

    def discriminator_loss(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            fake = self.generator(batch.draw("z", self.z_dim))
        return {"adversarial": self.loss.discriminator(self.discriminator(batch.images), self.discriminator(fake))}

    def generator_loss(self, batch: Batch) -> dict[str, Tensor]:
        fake = self.discriminator(self.generator(batch.draw("z", self.z_dim)))
        return {"adversarial": self.loss.generator(self.discriminator(batch.images), fake)}

    def phases(self) -> list[Phase]:
        return [
            Phase("discriminator", trains="discriminator", loss=self.discriminator_loss),
            Phase("generator", trains="generator", loss=self.generator_loss),
        ]


@dataclass
class ClippedOptions:
    name: str = "clipped"
    clip: float = 0.05
    many: int = 100
    few: int = 5
    first_steps: int = 25
    every: int = 500
    dropout: float = 0.0


class Clipped(Toy):
    """WGAN's critic (arXiv:1701.07875): 100 updates in each of the first 25 steps and in every 500th, else 5; clipped weights."""

    Options = ClippedOptions

    def phases(self) -> list[Phase]:
        return [
            Phase("critic", "discriminator", self.discriminator_loss, repeats=self.repeats, after_update=self.clip_weights),
            Phase("generator", "generator", self.generator_loss),
        ]

    def repeats(self, clock: Clock) -> int:
        options = self.options
        return options.many if clock.step < options.first_steps or clock.step % options.every == 0 else options.few

    def clip_weights(self) -> None:
        for parameter in self.discriminator.parameters():
            parameter.clamp_(-self.options.clip, self.options.clip)


@dataclass
class LazyOptions:
    name: str = "lazy"
    interval: int = 4
    dropout: float = 0.0


class Lazy(Toy):
    """A regularizer every fourth step, on half the batch, with the discriminator's own optimizer (arXiv:1912.04958)."""

    Options = LazyOptions

    def phases(self) -> list[Phase]:
        k = self.options.interval
        return [
            *super().phases(),
            Phase("regularizer", "discriminator", self.regularizer, interval=k, batch_scale=0.5, lazy=True),
        ]

    def regularizer(self, batch: Batch) -> dict[str, Tensor]:
        return {"size": self.options.interval * self.discriminator(batch.images).square()}


@dataclass
class PooledOptions:
    name: str = "pooled"
    pool: int = 6
    dropout: float = 0.0


class Pooled(Toy):
    """Two generators; the discriminator sees, of each, this step's fake or one from a pool, which the fake then replaces."""

    Options = PooledOptions
    ema_modules = ("generator", "other")
    observes = tuple(f"{at}_{side}" for side in ("generator", "other") for at in ("generators/fake", "discriminator/slot"))

    def __init__(self, options, spec, loss, penalty):
        super().__init__(options, spec, loss, penalty)
        self.other = generator(self.z_dim, spec)
        self.register_buffer("pool", torch.zeros(2, options.pool, 1, spec.resolution, spec.resolution))
        self.register_buffer("filled", torch.zeros(2, dtype=torch.int64))

    def parameter_sets(self) -> dict[str, nn.Module]:
        return {"generators": nn.ModuleList([self.generator, self.other]), "discriminator": self.discriminator}

    def phases(self) -> list[Phase]:
        return [Phase("generators", "generators", self.generators_loss),
                Phase("discriminator", "discriminator", self.pooled_loss, same_batch_as="generators")]  # fmt: skip

    def generators_loss(self, batch: Batch) -> dict[str, Tensor]:
        fakes = {f"fake_{side}": getattr(self, side)(batch.draw(f"z_{side}", self.z_dim)) for side in ("generator", "other")}
        batch.share(**fakes)
        for name, fake in fakes.items():
            batch.report(name, fake, reduce="cat")
        return {name: self.loss.generator(None, self.discriminator(fake)) for name, fake in fakes.items()}

    def pooled_loss(self, batch: Batch) -> dict[str, Tensor]:
        terms, real = {}, self.discriminator(batch.images)
        for i, side in enumerate(("generator", "other")):
            slot = batch.draw(f"slot_{side}", (), "integer", high=self.options.pool)
            slot = torch.where((batch.draw(f"old_{side}", (), "uniform") < 0.5) & (slot < self.filled[i]), slot, -1)
            batch.report(f"slot_{side}", slot, reduce="cat")
            seen = torch.where((slot < 0)[:, None, None, None], batch.shared[f"fake_{side}"].detach(), self.pool[i][slot])
            terms[side] = self.loss.discriminator(real, self.discriminator(seen))
        return terms

    def observe(self, stats) -> None:
        for i, side in enumerate(("generator", "other")):
            for fake, slot in zip(stats[f"generators/fake_{side}"], stats[f"discriminator/slot_{side}"].tolist()):
                if slot < 0 and self.filled[i] < self.options.pool:
                    slot = int(self.filled[i])
                    self.filled[i] += 1
                if slot >= 0:
                    self.pool[i, slot] = fake


@dataclass
class GrowingOptions:
    name: str = "growing"
    at_kimg: float = 0.04
    dropout: float = 0.0


class Growing(Toy):
    """Half resolution, then all of it, with another batch size and learning rate and an optimizer without a past."""

    Options = GrowingOptions
    resets_optimizers_on = ("resolution",)

    def __init__(self, options, spec, loss, penalty):
        super().__init__(options, spec, loss, penalty)
        low = Spec(spec.name, spec.resolution // 2, spec.channels, 0)
        self.generator = nn.ModuleDict({"low": generator(self.z_dim, low), "high": generator(self.z_dim, spec)})
        self.discriminator = nn.ModuleDict({"low": discriminator(low), "high": discriminator(spec)})

    def schedules(self) -> dict[str, Callable[[Clock], float]]:
        half = self.spec.resolution // 2
        values = {"resolution": (half, 2 * half), "batch_size": (8, 4), "lr": (1e-2, 1e-3)}
        return {name: lambda clock, v=v: float(v[clock.kimg >= self.options.at_kimg]) for name, v in values.items()}

    def sample(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        low = F.interpolate(self.generator["low"](z), scale_factor=2)
        return low if self.values["resolution"] < self.spec.resolution else low + self.generator["high"](z)

    def logits(self, images: Tensor) -> Tensor:
        low = self.discriminator["low"](F.avg_pool2d(images, 2))
        return low if self.values["resolution"] < self.spec.resolution else low + self.discriminator["high"](images)

    def discriminator_loss(self, batch: Batch) -> dict[str, Tensor]:
        fake = self.sample(batch.draw("z", self.z_dim)).detach()
        return {"adversarial": self.loss.discriminator(self.logits(batch.images), self.logits(fake))}

    def generator_loss(self, batch: Batch) -> dict[str, Tensor]:
        return {"adversarial": self.loss.generator(None, self.logits(self.sample(batch.draw("z", self.z_dim))))}


@dataclass
class ReusingOptions:
    name: str = "reusing"
    dropout: float = 0.0


class Reusing(Toy):
    """DCGAN's step (arXiv:1511.06434): one generator forward serves both phases; BatchNorm in both networks."""

    Options = ReusingOptions

    def __init__(self, options, spec, loss, penalty):
        super().__init__(options, spec, loss, penalty)
        self.generator.insert(1, nn.BatchNorm1d(5))
        self.discriminator.insert(2, nn.BatchNorm1d(6))

    def phases(self) -> list[Phase]:
        return [
            Phase("discriminator", "discriminator", self.discriminator_loss, keeps_graph=("generator",)),
            Phase("generator", "generator", self.generator_loss, same_batch_as="discriminator"),
        ]

    def fake(self, batch: Batch) -> Tensor:
        return self.generator(batch.draw("z", self.z_dim))

    def discriminator_loss(self, batch: Batch) -> dict[str, Tensor]:
        fake = self.fake(batch)
        batch.share(fake=fake)
        return {
            "real": F.softplus(-self.discriminator(batch.images)),
            "fake": F.softplus(self.discriminator(fake.detach())),
        }

    def generator_loss(self, batch: Batch) -> dict[str, Tensor]:
        return {"adversarial": F.softplus(-self.discriminator(self.reuse(batch, "fake", lambda: self.fake(batch))))}


@dataclass
class FailingOptions:
    """From step nan_from to nan_until the gradient of ``phase`` is NaN; after step poison_at a generator weight is infinite."""

    name: str = "failing"
    phase: str = "generator"
    nan_from: int = -1
    nan_until: int = -1
    poison_at: int = -1
    dropout: float = 0.0


class Failing(Toy):
    """A GAN whose losses or weights stop being finite at given steps."""

    Options = FailingOptions

    def phases(self) -> list[Phase]:
        return [
            Phase("discriminator", "discriminator", lambda batch: self.broken("discriminator", self.discriminator_loss(batch))),
            Phase("generator", "generator", lambda batch: self.broken("generator", self.generator_loss(batch)),
                  after_update=self.poison),
        ]  # fmt: skip

    def set_precision(self, dtype: torch.dtype | None) -> None:
        """No layer of this toy computes in less than fp32."""

    def broken(self, phase: str, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        options = self.options
        if phase == options.phase and options.nan_from <= self.clock.step < options.nan_until:
            terms["broken"] = torch.nan * next(self.parameter_sets()[phase].parameters()).sum()
        return terms

    def poison(self) -> None:
        if self.clock.step == self.options.poison_at:
            self.generator[0].bias[0] = torch.inf


TOYS: dict[str, type[GAN]] = {
    "clipped": Clipped, "lazy": Lazy, "pooled": Pooled, "growing": Growing, "reusing": Reusing, "failing": Failing,
}  # fmt: skip


def toy_data(options) -> DataSource:
    """50 images of 8 px with 3 classes: fewer than most runs see, so that epochs begin within a batch."""
    rng = torch.Generator().manual_seed(8)
    ramp = torch.linspace(0, 155, 8).round().to(torch.uint8).repeat(50, 1, 8, 1)
    images = ramp + torch.randint(100, (50, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return DataSource(images, torch.arange(50) % 3, Spec("toy", 8, 1, 3))


def register() -> None:
    """Make the toys and their data known, as a user's own model would be; one thread, since more only wait for each other."""
    torch.set_num_threads(1)
    gans.GANS.update(TOYS)
    data.DATASETS["toy"] = toy_data


register()

R3GAN = {
    "gan": {"name": "r3gan", "width": 8, "cardinality": 2, "blocks": 1, "z_dim": 4, "embedding_dim": 4},
    "loss": {"name": "relativistic"},
    "penalty": {"name": "r1_r2", "gamma": 0.5},
    "schedule": {"lr": {"final": 1e-4}, "gamma": {"final": 0.05}, "ema_half_life": {"final": 0.02}},
}


def values(name: str = "lazy", **changes) -> dict:
    """Plain options of a short run of a toy or of a tiny "r3gan"; ``gan=`` adds to the toy's own, other ``changes`` replace."""
    base = {
        "gan": {"name": name},
        "dataset": {"name": "toy"},
        "loss": {"name": "wasserstein" if name == "clipped" else "nonsaturating"},
        "penalty": {"name": "none"},
        "optim": {"name": "adam", "lr": 2e-3, "beta1": 0.5, "beta2": 0.9},
        "total_kimg": 0.08,
        "batch_size": 8,
        "ema_half_life": 0.03,
        "device": "cpu",
        "sample": {"rows": 2, "columns": 2},
        "eval": {"samples": 0},
        "log": {"every_kimg": 0.008},
    }
    if name == "r3gan":
        base |= R3GAN
    options = {**base["gan"], **changes.pop("gan", {})}
    return {**base, **changes, "gan": options}
