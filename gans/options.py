"""Checks of option values that the models share; each ends in one line that names the option and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable

from errors import UserError


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """UserError unless ``value`` is among ``allowed``."""
    allowed = list(allowed)
    if value not in allowed:
        raise UserError(f"{name}={value}: unknown; allowed: {', '.join(allowed)}")


def at_least(name: str, value: float, low: float) -> None:
    """UserError unless ``value`` >= ``low``."""
    if not value >= low:
        raise UserError(f"{name}={value}: must be at least {low:g}")


def share(name: str, value: float) -> None:
    """UserError unless 0 <= ``value`` < 1."""
    if not 0 <= value < 1:
        raise UserError(f"{name}={value}: must be at least 0 and below 1")
