"""Augmentation of what the discriminator sees, so that it does not learn small data sets by heart.

    pipe = build_augment({"name": "ada"}, channels=3)
    images = pipe(images, draw, strength=0.3)       # (n, c, h, w) in [-1, 1], differentiable twice

Real and fake images go through the same pipe with draws of their own; penalties differentiate through it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.augment.ada import ADAOptions, AugmentPipe, Draw
from data.augment.adaptive import AdaptiveStrength
from data.augment.diffaugment import DiffAugment, DiffAugmentOptions
from errors import UserError, nearest

__all__ = [
    "AUGMENTS",
    "ADAOptions",
    "AdaptiveStrength",
    "AugmentPipe",
    "DiffAugment",
    "DiffAugmentOptions",
    "Draw",
    "NoAugmentOptions",
    "build_adaptive_strength",
    "build_augment",
]


@dataclass(frozen=True)
class NoAugmentOptions:
    """``augment=none``."""

    def build(self, channels: int) -> None:
        """No pipe."""


AUGMENTS: dict[str, type] = {"none": NoAugmentOptions, "ada": ADAOptions, "diffaugment": DiffAugmentOptions}


def build_augment(options: Mapping[str, Any], channels: int) -> AugmentPipe | DiffAugment | None:
    """The pipe named by ``options["name"]`` with its options, for images of ``channels`` channels; None for "none".

    UserError (one line) for an unknown name or option, a value out of range, or channels the pipe cannot treat.
    """
    return _options(options).build(channels)


def build_adaptive_strength(options: Mapping[str, Any], start: float = 0.0) -> AdaptiveStrength | None:
    """The controller that moves the strength from ``start`` if ``options`` ask for one (``adaptive: true``), else None."""
    chosen = _options(options)
    if not getattr(chosen, "adaptive", False):
        return None
    return AdaptiveStrength(start, chosen.target, chosen.interval, chosen.adjust_kimg)


def _options(options: Mapping[str, Any]) -> NoAugmentOptions | ADAOptions | DiffAugmentOptions:
    """Checks names and ranges; types are the config schema's business, for which the registry holds dataclasses."""
    values = dict(options)
    name = values.pop("name", None)
    if name not in AUGMENTS:
        raise UserError(f"augment.name={name} is unknown; {nearest(name, AUGMENTS)}")
    allowed = [f.name for f in dataclasses.fields(AUGMENTS[name])]
    for option in values:
        if option not in allowed:
            raise UserError(f"augment.{option} is not an option of augment={name}; {nearest(option, allowed)}")
    try:
        return AUGMENTS[name](**values)
    except ValueError as error:
        raise UserError(f"augment={name}: {error}") from None
