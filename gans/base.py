"""The interface between a model and the driver: a GAN is a list of phases.

The driver knows nothing of generators and discriminators. Its clock is (step, images_seen). In every step it runs the
phases in order; a phase draws its own batch, computes named loss terms, is differentiated once for each micro-batch, and
moves one named set of parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nets.layers import StochasticDepth, advance_spectral_norm


@dataclass(frozen=True)
class Clock:
    """Where a run is: finished steps, and real images seen (grows by ``batch_size`` once a step)."""

    step: int = 0
    images_seen: int = 0

    @property
    def kimg(self) -> float:
        """Thousands of real images seen, the unit of schedules and logs."""
        return self.images_seen / 1000


class Batch(Protocol):
    """What a phase's ``loss`` gets: one micro-batch of ``n`` samples, a slice of the phase's global batch.

    images  (n, channels, resolution, resolution) float32 in [-1, 1], on the run's device.
    labels  (n,) int64 class numbers, or None when the data has none.
    shared  what the phase named by ``same_batch_as`` left with :meth:`share` for this very micro-batch.
    grad_scale  float; under fp16 the factor by which a penalty must multiply logits before it differentiates them, and
            divide the gradient after (1.0 otherwise).
    """

    images: Tensor
    labels: Tensor | None
    shared: dict[str, Tensor]
    grad_scale: float

    def draw(self, purpose: str, shape: int | tuple[int, ...] = (), kind: str = "normal", high: int = 0) -> Tensor:
        """Per-sample random numbers (n, *shape): "normal", "uniform" in [0, 1), or "integer" in [0, high).

        A function of (seed, step, phase, repeat, purpose) and of the sample's place in the global batch: asking twice gives
        the same numbers, and neither micro-batches nor processes change them. A phase with ``same_batch_as`` sees the
        draws of that phase.
        """
        ...

    def augment(self, images: Tensor, purpose: str) -> Tensor:
        """``images`` through the augmentation pipe at the scheduled strength (the identity without one); differentiable."""
        ...

    def reseed_layers(self, purpose: str) -> None:
        """Seed the generators that layers draw from (dropout, layer noise), keyed by the phase's batch and ``purpose``: a
        forward that a later phase repeats (:meth:`GAN.reuse`) draws the same. Layer draws are seeded before each micro-batch
        in any case."""
        ...

    def share(self, **tensors: Tensor) -> None:
        """Leave tensors for the phases that name this one in ``same_batch_as``.

        They keep their graph when the phase has one micro-batch and are detached otherwise; see :meth:`GAN.reuse`.
        """
        ...

    def report(self, name: str, value: Tensor, reduce: str = "mean") -> None:
        """Log ``<phase>/<name>``. ``reduce="mean"``: scalar or per sample, averaged over the global batch;
        ``reduce="cat"``: (n, …), joined in the order of the global batch (only for what ``GAN.observes`` names)."""
        ...


@dataclass(frozen=True)
class Phase:
    """One kind of update in a step.

    name          unique in the GAN; keys its random draws and its log entries.
    trains        the parameter set it moves; phases that name the same set share one optimizer.
    loss          micro-batch -> named terms, each a scalar or (n,); their sum is differentiated.
    interval      runs in steps with ``step % interval == 0``.
    repeats       times in such a step, each with a fresh batch: an int or a function of the clock.
    batch_scale   its batch is ``round(batch_scale * batch_size)`` samples.
    after_update  called after each optimizer step (weight clipping).
    keeps_graph   other parameter sets that also require grad while the phase runs, because tensors it shares must carry
                  their graph to a later phase.
    same_batch_as the earlier phase whose reals, draws and ``shared`` tensors it uses.
    lazy          a regularizer split off its main phase: a set with such a phase of interval k trains with lr * c and
                  beta ** c, c = k / (k + 1) (arXiv:1912.04958, appendix B). The loss itself carries the factor k.
    """

    name: str
    trains: str
    loss: Callable[[Batch], dict[str, Tensor]]
    interval: int = 1
    repeats: int | Callable[[Clock], int] = 1
    batch_scale: float = 1.0
    after_update: Callable[[], None] | None = None
    keeps_graph: tuple[str, ...] = ()
    same_batch_as: str | None = None
    lazy: bool = False


class GAN(nn.Module):
    """A model: networks as attributes, phases, and how to sample. Subclass it, one file a paper.

    Class attributes
        ema_modules            names of the attributes that have an EMA copy (the sampling networks).
        observes               ``<phase>/<name>`` of the reports that :meth:`observe` needs every step.
        resets_optimizers_on   scheduled quantities at whose change every optimizer starts anew.
        recognises_reals       ``<phase>/<name>`` of the report (a share in [0, 1]) that says how often D tells reals from fakes;
                               an adaptive augmentation strength follows it. None: the model has no such report.
    """

    ema_modules: tuple[str, ...] = ("generator",)
    observes: tuple[str, ...] = ()
    resets_optimizers_on: tuple[str, ...] = ()
    recognises_reals: str | None = None

    z_dim: int
    conditional: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.values: Mapping[str, float] = {}
        self.clock = Clock()

    def phases(self) -> list[Phase]:
        """The phases of a step, in order."""
        raise NotImplementedError

    def parameter_sets(self) -> dict[str, nn.Module]:
        """Name -> module whose parameters form that set. Names are what ``Phase.trains`` and ``optim.<set>`` use."""
        return {"generator": self.generator, "discriminator": self.discriminator}

    def schedules(self) -> dict[str, float | Callable[[Clock], float]]:
        """Quantities of this model that may be scheduled: the constant, or a function of the clock.

        Also ``batch_size`` or ``lr`` where the model's recipe prescribes them. A ``schedule.<name>`` option wins.
        """
        return {}

    def set_progress(self, clock: Clock, values: Mapping[str, float]) -> None:
        """Called by the driver before each step with the values of all schedules at ``clock``."""
        self.clock, self.values = clock, values

    def set_precision(self, dtype: torch.dtype | None) -> None:
        """Compute in ``dtype`` (None: fp32) from now on, in the layers where this model allows it.

        Logits and penalties must still leave in fp32.
        """
        if dtype is not None:
            raise NotImplementedError(f"{type(self).__name__} does not say how it runs in {dtype}")

    def before_phase(self, phase: Phase) -> None:
        """Called by the driver before each run of ``phase``, in every process alike: state that follows the weights moves here,
        once however the batch is split. The singular vectors of spectral norm do; a model may add its own."""
        advance_spectral_norm(self)

    def observe(self, stats: Mapping[str, Tensor]) -> None:
        """Update state (registered buffers) once a step from what ``observes`` names, reduced over the global batch."""

    def sample(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Images (n, channels, resolution, resolution) in [-1, 1] from latents (n, z_dim) and labels (n,) int64."""
        return self.generator(z, labels) if self.conditional else self.generator(z)

    def batch_coupled(self) -> list[str]:
        """Names of layers and losses in which a sample's result depends on the rest of its micro-batch, or on its place in it
        (layers that draw random numbers)."""

        def coupled(module: nn.Module) -> bool:
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                return True
            if isinstance(module, nn.modules.dropout._DropoutNd):
                return module.p > 0
            if isinstance(module, StochasticDepth):
                return module.survival < 1
            return getattr(module, "batch_coupled", False) is True

        return [name for name, module in self.named_modules() if coupled(module)]

    def remarks(self) -> list[str]:
        """What a user should know of this model once, before the first step, a line each."""
        return []

    def with_modules(self, modules: Mapping[str, nn.Module]) -> GAN:
        """A view of this GAN in which the named networks are replaced (EMA copies), everything else shared."""
        view = copy.copy(self)
        view._modules = {**self._modules, **modules}
        return view

    def reuse(self, batch: Batch, name: str, forward: Callable[[], Tensor]) -> Tensor:
        """``batch.shared[name]`` if it still has its graph, else ``forward()`` again (same draws), BatchNorm statistics held.

        ``forward`` must begin with ``batch.reseed_layers`` if its layers draw random numbers.
        """
        tensor: Any = batch.shared.get(name)
        if tensor is not None and tensor.requires_grad:
            return tensor
        with held_batchnorm_statistics(self):
            return forward()


class held_batchnorm_statistics:
    """Context: BatchNorm normalises as before but does not move its running statistics (a forward that is a repetition)."""

    def __init__(self, module: nn.Module):
        self.norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]

    def __enter__(self) -> None:
        self.saved = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in self.norms]
        for m in self.norms:  # the forward below moves copies, which are dropped on exit
            m.running_mean, m.running_var = m.running_mean.clone(), m.running_var.clone()
            m.num_batches_tracked = m.num_batches_tracked.clone()

    def __exit__(self, *_: object) -> None:
        for m, (mean, var, count) in zip(self.norms, self.saved):
            m.running_mean, m.running_var, m.num_batches_tracked = mean, var, count
