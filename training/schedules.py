"""Quantities that change over training. The driver evaluates them at its clock; models only receive values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from errors import UserError, nearest
from gans.base import Clock

KINDS = ("cosine", "linear", "constant", "steps")


@dataclass
class ScheduleOptions:
    """How one quantity goes from its own option's value (its base) to ``final``.

    kind         cosine or linear from base to final; constant; or steps: ``values[i]`` from ``at[i]`` kimg on.
    final        the value at the end, held from then on.
    kimg         length, warm-up and hold included; None: ``schedule_kimg``.
    warmup_kimg  before all else, a line from ``warmup_from`` to base over this many kimg.
    hold_kimg    then base is held this long before the descent.
    """

    kind: str = "cosine"
    final: float | None = None
    kimg: float | None = None
    warmup_kimg: float = 0.0
    warmup_from: float = 0.0
    hold_kimg: float = 0.0
    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def check(self, name: str) -> None:
        """UserError unless the fields fit each other."""
        if self.kind not in KINDS:
            raise UserError(f"schedule.{name}.kind={self.kind}: unknown, {nearest(self.kind, KINDS)}")
        if self.kind in ("cosine", "linear") and self.final is None:
            raise UserError(f"schedule.{name}: kind={self.kind} needs schedule.{name}.final=…")
        if self.kind in ("constant", "steps"):
            for option in ("final", "kimg", "hold_kimg"):
                if getattr(self, option):
                    raise UserError(f"schedule.{name}: kind={self.kind} has no {option}={getattr(self, option)}; "
                                    "use kind=cosine or kind=linear")
        if self.warmup_from and not self.warmup_kimg:
            raise UserError(f"schedule.{name}: warmup_from={self.warmup_from} needs warmup_kimg above 0")
        if self.kind == "steps":
            if not self.at or len(self.at) != len(self.values) or list(self.at) != sorted(self.at):
                raise UserError(
                    f"schedule.{name}: kind=steps needs rising at=[kimg, …] and as many values=[…], found at={self.at} "
                    f"values={self.values}"
                )
        elif self.at or self.values:
            raise UserError(f"schedule.{name}: at and values belong to kind=steps, found kind={self.kind}")
        if min(self.warmup_kimg, self.hold_kimg, self.kimg or 0.0) < 0:
            raise UserError(f"schedule.{name}: warmup_kimg, hold_kimg and kimg must not be negative")
        length = self.kimg
        if length is not None and self.kind in ("cosine", "linear") and self.warmup_kimg + self.hold_kimg >= length:
            raise UserError(f"schedule.{name}: warmup_kimg + hold_kimg must be below kimg={length}")


def evaluate(options: ScheduleOptions, base: float, kimg: float, schedule_kimg: float) -> float:
    """The value at ``kimg`` of a quantity whose own option is ``base`` (float64).

    cosine: base + (final - base) (1 - cos(pi t)) / 2, t the share of the way from the end of the hold to ``kimg``.
    """
    if options.warmup_kimg and kimg < options.warmup_kimg:
        return options.warmup_from + (base - options.warmup_from) * kimg / options.warmup_kimg
    if options.kind == "steps":
        reached = [value for at, value in zip(options.at, options.values, strict=True) if kimg >= at]
        return reached[-1] if reached else base
    if options.kind == "constant":
        return base
    length = schedule_kimg if options.kimg is None else options.kimg
    start = options.warmup_kimg + options.hold_kimg
    if kimg >= length:
        return float(options.final)
    if kimg <= start:
        return base
    t = (kimg - start) / (length - start)
    if options.kind == "cosine":
        t = (1 - math.cos(math.pi * t)) / 2
    return base + (options.final - base) * t


class Schedules:
    """All quantities of a run: name -> base value (or a model's own function of the clock), and their schedules."""

    def __init__(
        self,
        quantities: Mapping[str, float | Callable[[Clock], float]],
        options: Mapping[str, ScheduleOptions],
        schedule_kimg: float,
    ):
        for name, schedule in options.items():
            if name not in quantities:
                raise UserError(f"schedule.{name}: nothing here has that name, {nearest(name, quantities)}")
            schedule.check(name)
        self.quantities, self.options, self.schedule_kimg = dict(quantities), dict(options), schedule_kimg

    def base(self, name: str) -> float:
        """What a schedule of ``name`` starts from: its option, or the model's own function at the start of training."""
        value = self.quantities[name]
        return value(Clock()) if callable(value) else value

    def at(self, clock: Clock) -> dict[str, float]:
        """Every quantity's value at ``clock``."""
        values = {}
        for name, quantity in self.quantities.items():
            base = quantity(clock) if callable(quantity) else quantity
            options = self.options.get(name)
            values[name] = base if options is None else evaluate(options, base, clock.kimg, self.schedule_kimg)
        return values
