"""One training step of any GAN: its phases, their gradients and updates, EMA, observation, clock.

The engine is the part of the driver that decides what the weights become; trainer.py decides what is written when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from data import to_float
from data.augment import build_adaptive_strength, build_augment
from errors import UserError
from gans.base import GAN, Clock, Phase
from training.batch import MicroBatch, flip
from training.config import Config
from training.draws import Draws, Reals, reseed_layers
from training.ema import ema_beta, ema_copy, ema_update
from training.optimizers import build_optimizers, optimizer_fields
from training.processes import Processes
from training.schedules import Schedules

DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
MAX_BAD_IN_A_ROW = 3


class Diverged(RuntimeError):
    """Gradients of one phase were not finite ``MAX_BAD_IN_A_ROW`` times in a row."""


def _batch_size(values: Mapping[str, float]) -> int:
    return max(1, round(values["batch_size"]))


class Engine:
    """Holds everything that a checkpoint saves and advances it by :meth:`step`."""

    def __init__(self, gan: GAN, source: Any, config: Config, processes: Processes):
        self.source, self.config, self.processes = source, config, processes
        self.device = processes.device
        self.gan = gan.to(self.device).train().requires_grad_(False)  # phases switch on what they train
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        for tensor in (*gan.parameters(), *gan.buffers()):
            if tensor.ndim == 4:  # gan.to(memory_format=…) refuses a model with a buffer of five dimensions
                tensor.data = tensor.data.contiguous(memory_format=layout)
        try:
            self.gan.set_precision(DTYPES[config.precision])
        except NotImplementedError:
            raise UserError(f"precision={config.precision}: gan={config.gan.name} runs in fp32 or tf32 only") from None
        self.clock = Clock()
        self.reals = Reals(config.seed, len(source))

        self.phases = gan.phases()
        self.sets = {name: [p for p in module.parameters()] for name, module in gan.parameter_sets().items()}
        self._check_phases()
        lazy = {name: [p.interval for p in self.phases if p.lazy and p.trains == name] for name in self.sets}
        channels = source.spec.channels
        self.augment = build_augment(config.augment, channels)
        self.adaptive_strength = build_adaptive_strength(config.augment, config.augment_strength)
        self._check_augmentation()
        self.schedules = Schedules(quantities(config, gan, channels), config.schedule, config.schedule_kimg or config.total_kimg)
        self.optimizers = build_optimizers(config.optim, self.sets, lazy, self.device, self.schedules.base("lr"))
        scaling = config.precision == "fp16"
        self.scalers = {name: torch.amp.GradScaler(self.device.type, enabled=scaling) for name in self.sets}
        self.ema = {name: ema_copy(getattr(gan, name)) for name in gan.ema_modules}
        self.norms = [m for m in gan.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]

        followed = () if self.adaptive_strength is None else (gan.recognises_reals,)
        self.observed = {*gan.observes, *followed}  # reports that are reduced over processes every step
        self.bad_in_a_row = {phase.name: 0 for phase in self.phases}
        self.totals: dict[str, Tensor] = {}  # sums of this process's part of each logged mean since the last log line
        self.counts: dict[str, int] = {}
        self._shared: dict[str, list[dict[str, Tensor]]] = {}
        self._pending: dict[str, Tensor] = {}  # means of the phase that is running
        self._stats: dict[str, list[Tensor]] = {}  # what gan.observes names, one entry for each repeat
        self._requiring: frozenset[str] | None = None
        self._start_step()

    # what may be asked of the engine -----------------------------------------------------------------------------------

    def step(self) -> None:
        """Run every phase that is due, then once: EMA, ``observe``, the clock and what hangs on it."""
        self._shared, self._stats = {}, {}
        for phase, repeat in self._due(self.clock):
            self.gradients(phase, repeat)
            self._update(phase)
        self._shared = {}
        self._average_batchnorm_statistics()
        beta = ema_beta(self.batch_size, 1000 * self.values["ema_half_life"])
        for name, average in self.ema.items():
            ema_update(average, getattr(self.gan, name), beta)
        stats = self._reduced_stats()
        if self.gan.observes:
            self.gan.observe(stats)
        if self.adaptive_strength is not None and self.gan.recognises_reals in stats:
            self.adaptive_strength.update(2 * stats[self.gan.recognises_reals] - 1, self.batch_size)
        self.clock = Clock(self.clock.step + 1, self.clock.images_seen + self.batch_size)
        before = self.values
        self._start_step()
        if any(before[name] != self.values[name] for name in self.gan.resets_optimizers_on):
            for optimizer in self.optimizers.values():
                optimizer.reset()
                optimizer.set_values(self.values)

    def gradients(self, phase: Phase, repeat: int = 0) -> None:
        """Leave in ``.grad`` of the set that ``phase`` trains the gradient of its loss over the global batch (scaled by
        the set's loss scaler under fp16)."""
        self.gan.before_phase(phase)
        indices, edges = self._reals(phase, repeat, self.clock, self.batch_size)
        n, one = len(indices), len(edges) == 2
        draws = Draws(self.config.seed, self.clock.step, phase.same_batch_as or phase.name, repeat, n)

        self._require_grad(frozenset({phase.trains, *(phase.keeps_graph if one else ())}))
        parameters, scaler = self.sets[phase.trains], self.scalers[phase.trains]
        for parameter in parameters:
            parameter.grad = None
        micro_batches = []
        for i, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
            key = (self.config.seed, self.clock.step, phase.same_batch_as or phase.name, repeat, low)
            batch = self._batch(phase, draws, indices, low, high, one, i, partial(reseed_layers, *key))
            reseed_layers(self.config.seed, self.clock.step, phase.name, repeat, low)
            loss = self._total(phase, batch, n)
            torch.autograd.backward(scaler.scale(loss), inputs=parameters, retain_graph=bool(phase.keeps_graph) and one)
            batch.images = batch.labels = None  # what is kept to the end of the phase is small
            micro_batches.append(batch)
        self._shared[phase.name] = [batch.left for batch in micro_batches]
        self._record(phase, micro_batches, n)
        grads = [p.grad for p in parameters if p.grad is not None]
        if not grads:
            raise ValueError(f"phase {phase.name!r}: its loss does not depend on any parameter of {phase.trains!r}")
        self.processes.sum_(grads)

    def coming(self) -> Iterator[Tensor]:
        """Indices of the real images of every micro-batch from here on, without end, in the order they will be asked for."""
        return self._coming(self.clock, self.batch_size)

    # inside a step -----------------------------------------------------------------------------------------------------

    def _coming(self, clock: Clock, batch_size: int) -> Iterator[Tensor]:
        while True:
            for phase, repeat in self._due(clock):
                indices, edges = self._reals(phase, repeat, clock, batch_size)
                for low, high in zip(edges, edges[1:], strict=False):
                    yield indices[low:high]
            clock = Clock(clock.step + 1, clock.images_seen + batch_size)
            batch_size = _batch_size(self.schedules.at(clock))

    def _due(self, clock: Clock) -> Iterator[tuple[Phase, int]]:
        """(phase, repeat) of the step at ``clock``, in order."""
        for phase in self.phases:
            if clock.step % phase.interval == 0:
                repeats = phase.repeats(clock) if callable(phase.repeats) else phase.repeats
                for repeat in range(repeats):
                    yield phase, repeat

    def _reals(self, phase: Phase, repeat: int, clock: Clock, batch_size: int) -> tuple[Tensor, list[int]]:
        """(indices (n,) of the phase's global batch, the edges in it of this process's micro-batches)."""
        n = max(1, round(phase.batch_scale * batch_size))
        position = round(phase.batch_scale * clock.images_seen)
        indices = self.reals.indices(phase.same_batch_as or phase.name, repeat, position, n)
        first, last = self.processes.share(n)
        if n < self.processes.count:  # and not where only this process has none: the others would wait for it
            raise UserError(f"batch_size={batch_size}: too small to give each of {self.processes.count} processes a sample "
                            f"in phase {phase.name} ({n} samples)")
        return indices, [*range(first, last, self.config.micro_batch or n), last]

    def _start_step(self) -> None:
        self.values = self.schedules.at(self.clock)
        if self.adaptive_strength is not None:
            self.values["augment_strength"] = float(self.adaptive_strength.strength)
        self.batch_size = _batch_size(self.values)
        self.gan.set_progress(self.clock, self.values)
        for optimizer in self.optimizers.values():
            optimizer.set_values(self.values)

    def _check_augmentation(self) -> None:
        config = self.config
        if self.adaptive_strength is not None:
            if self.gan.recognises_reals is None:
                raise UserError(f"augment.adaptive=true: gan={config.gan.name} does not report how often D recognises reals; "
                                "schedule augment_strength instead")
        elif getattr(self.augment, "uses_strength", False):
            if not config.augment_strength and "augment_strength" not in config.schedule:
                raise UserError(f"augment={config.augment['name']}: at augment_strength=0 it does nothing; set augment_strength, "
                                "schedule.augment_strength.final or augment.adaptive=true")
        elif config.augment_strength:
            raise UserError(f"augment_strength={config.augment_strength}: augment={config.augment['name']} has no strength; "
                            "use augment=ada")

    def _check_phases(self) -> None:
        for phase in self.phases:
            n = round(phase.batch_scale * self.config.batch_size)
            if n > max(len(self.source), self.config.batch_size):  # a batch_size above the data has its own message
                raise UserError(f"batch_size={self.config.batch_size}: phase {phase.name} would draw {phase.batch_scale:g} times "
                                f"that at once, and the data has {len(self.source)} images; lower batch_size")
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            raise ValueError(f"{type(self.gan).__name__}: two phases share a name in {names}")
        seen: set[int] = set()
        for name, parameters in self.sets.items():
            if seen & {id(p) for p in parameters}:
                raise ValueError(f"{type(self.gan).__name__}: a parameter of set {name!r} is also in another set")
            seen |= {id(p) for p in parameters}
        for i, phase in enumerate(self.phases):
            for name in (phase.trains, *phase.keeps_graph):
                if name not in self.sets:
                    raise ValueError(f"phase {phase.name!r} names the parameter set {name!r}, which is none of {[*self.sets]}")
            if phase.same_batch_as is not None:
                earlier = {p.name: p for p in self.phases[:i]}.get(phase.same_batch_as)
                if earlier is None or earlier.batch_scale != phase.batch_scale or (earlier.repeats, phase.repeats) != (1, 1):
                    raise ValueError(f"phase {phase.name!r}: same_batch_as must name an earlier phase of the same batch_scale, "
                                     "both with repeats=1")
                if earlier.same_batch_as is not None:
                    raise ValueError(f"phase {phase.name!r}: same_batch_as names {earlier.name!r}, which has its batch from "
                                     f"{earlier.same_batch_as!r}; name that one")
                if phase.interval % earlier.interval:
                    raise ValueError(f"phase {phase.name!r} would run in steps in which {earlier.name!r} does not")

    def _require_grad(self, sets: frozenset[str]) -> None:
        if sets != self._requiring:
            for name, parameters in self.sets.items():
                for parameter in parameters:
                    parameter.requires_grad_(name in sets)
            self._requiring = sets

    def _batch(self, phase: Phase, draws: Draws, indices: Tensor, low: int, high: int, one: bool, i: int,
               reseed: Callable[[str], None]) -> MicroBatch:
        where = slice(low, high)
        images, labels = self.source.batch(indices[where])
        images = to_float(images)
        if self.config.dataset.xflip:
            images = flip(images, draws, where)
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        shared = self._shared[phase.same_batch_as][i] if phase.same_batch_as else {}
        scale = self.scalers[phase.trains].get_scale() if self.scalers[phase.trains].is_enabled() else 1.0
        strength = self.values.get("augment_strength", 1.0)
        return MicroBatch(images, labels, draws, low, high, shared, one, scale, self.augment, strength, reseed)

    def _total(self, phase: Phase, batch: MicroBatch, n: int) -> Tensor:
        """The micro-batch's share of the mean loss over the global batch of n."""
        terms = phase.loss(batch)
        total: Tensor | float = 0.0
        for name, term in terms.items():
            if term.ndim > 1 or (term.ndim == 1 and term.shape[0] != len(batch)):
                raise ValueError(f"phase {phase.name!r}: loss term {name!r} must be a scalar or ({len(batch)},), "
                                 f"got {tuple(term.shape)}")
            batch.report(f"loss_{name}", term)
            total = total + term.float().mean() * (len(batch) / n)
        batch.report("loss", sum(term.detach().float().mean() for term in terms.values()))
        return total

    def _record(self, phase: Phase, micro_batches: list[MicroBatch], n: int) -> None:
        self._pending = {}
        for name in micro_batches[0].means:
            mean = sum(batch.means[name] * (len(batch) / n) for batch in micro_batches)
            full = f"{phase.name}/{name}"
            self._pending[full] = mean
            if full in self.observed:
                self._stats.setdefault(full, []).append(mean)
        for name in micro_batches[0].joined:
            full = f"{phase.name}/{name}"
            if full not in self.gan.observes:
                raise ValueError(f"report({name!r}, reduce='cat') in phase {phase.name!r}: not among observes")
            self._stats.setdefault(full, []).append(torch.cat([batch.joined[name] for batch in micro_batches]))

    def _add(self, name: str, value: Tensor) -> None:
        """Log this process's part of a mean; the parts of all processes sum up to the mean of one phase run."""
        if name in self.totals:
            self.totals[name] += value
            self.counts[name] += 1
        else:
            self.totals[name], self.counts[name] = value.detach().clone(), 1

    def _add_alike(self, name: str, value: Tensor) -> None:
        """Log a value that every process holds alike."""
        self._add(name, value / self.processes.count)

    def _update(self, phase: Phase) -> None:
        optimizer, scaler = self.optimizers[phase.trains].optimizer, self.scalers[phase.trains]
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.sets[phase.trains] if p.grad is not None])
        finite = bool(torch.isfinite(norm))
        if finite:  # of an update that is skipped only the skip is logged: its numbers would make a whole line of the log NaN
            for name, mean in self._pending.items():
                self._add(name, mean)
            self._add_alike(f"{phase.name}/grad_norm", norm)
            if self.config.clip_grad_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(self.sets[phase.trains], self.config.clip_grad_norm, norm)
            scaler.step(optimizer)
        scaler.update()
        self._add_alike(f"{phase.name}/skipped", torch.tensor(float(not finite), device=self.device))
        lowered = 1 <= scaler.get_scale() < scale  # an fp16 overflow that the scaler answers is no fault of the model
        if not lowered:
            self.bad_in_a_row[phase.name] = 0 if finite else self.bad_in_a_row[phase.name] + 1
        if self.bad_in_a_row[phase.name] >= MAX_BAD_IN_A_ROW:
            raise Diverged(
                f"step {self.clock.step} ({self.clock.kimg:g} kimg), phase {phase.name}: the gradient of {self._culprit(phase)} "
                f"was not finite {MAX_BAD_IN_A_ROW} times in a row; lower optim.lr, raise the penalty or use precision=fp32"
            )
        for parameter in self.sets[phase.trains]:
            parameter.grad = None
        if phase.after_update is not None:
            with torch.no_grad():
                phase.after_update()

    def _culprit(self, phase: Phase) -> str:
        module = self.gan.parameter_sets()[phase.trains]
        for name, parameter in module.named_parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                return f"{phase.trains}.{name}"
        return phase.trains

    def _average_batchnorm_statistics(self) -> None:
        buffers = [b for m in self.norms for b in (m.running_mean, m.running_var)]
        self.processes.sum_(buffers, scale=1 / self.processes.count)

    def _reduced_stats(self) -> dict[str, Tensor]:
        """What ``observes`` names: means over the global batches, or joined in their order, over all repeats."""
        stats = {}
        for name, repeats in self._stats.items():
            if repeats[0].ndim:
                joined = []
                for part in repeats:
                    size = torch.tensor([float(part.shape[0])], device=self.device)
                    self.processes.sum_([size])
                    joined.append(self.processes.gather(part, int(size)))
                stats[name] = torch.cat(joined)
            else:
                mean = torch.stack(repeats).mean()
                self.processes.sum_([mean])
                stats[name] = mean
        return stats

    # for the log and for checkpoints -------------------------------------------------------------------------------------

    def pop_means(self) -> dict[str, float]:
        """Means over all processes of everything reported since the last call."""
        names = sorted(self.totals)
        means: dict[str, float] = {}
        if names:
            totals = torch.stack([self.totals[name] for name in names])
            self.processes.sum_([totals])
            means = {name: value / self.counts[name] for name, value in zip(names, totals.tolist(), strict=True)}
        self.totals, self.counts = {}, {}
        return means

    def state(self) -> dict[str, Any]:
        """Plain containers of everything that a resumed run needs; the same call must be made in every process."""
        names = sorted(self.totals)
        totals = [self.totals[name].clone() for name in names]
        self.processes.sum_(totals)
        return {
            "clock": {"step": self.clock.step, "images_seen": self.clock.images_seen},
            "gan": self.gan.state_dict(),
            "ema": {name: module.state_dict() for name, module in self.ema.items()},
            "optimizers": {name: o.optimizer.state_dict() for name, o in self.optimizers.items()},
            "scalers": {name: scaler.state_dict() for name, scaler in self.scalers.items()},
            "augment": {} if self.adaptive_strength is None else self.adaptive_strength.state_dict(),
            "bad_in_a_row": dict(self.bad_in_a_row),
            "log": {name: [float(total), self.counts[name]] for name, total in zip(names, totals, strict=True)},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self.clock = Clock(**state["clock"])
        self.gan.load_state_dict(state["gan"])
        for name, module in self.ema.items():
            module.load_state_dict(state["ema"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.optimizer.load_state_dict(state["optimizers"][name])
        for name, scaler in self.scalers.items():
            if scaler.is_enabled():
                scaler.load_state_dict(state["scalers"][name])
        if self.adaptive_strength is not None:
            self.adaptive_strength.load_state_dict(state["augment"])
        self.bad_in_a_row = dict(state["bad_in_a_row"])
        for name, (total, count) in state["log"].items():
            self.totals[name] = torch.tensor(total if self.processes.first else 0.0, device=self.device)
            self.counts[name] = count
        self._start_step()

    def ema_gan(self) -> GAN:
        """A view of the GAN with its EMA copies, for sampling."""
        return self.gan.with_modules(self.ema)


def quantities(config: Config, gan: GAN, channels: int) -> dict[str, Any]:
    """What may be scheduled in this run: name -> its option's value, or the model's own function of the clock."""
    numbers = {k: config.optim[k] for k in optimizer_fields(config.optim["name"]) if not isinstance(config.optim[k], bool)}
    names = ["batch_size", "ema_half_life"]
    pipe = build_augment(config.augment, channels)
    if getattr(pipe, "uses_strength", False) and build_adaptive_strength(config.augment) is None:
        names.append("augment_strength")
    return numbers | {name: float(getattr(config, name)) for name in names} | dict(gan.schedules())
