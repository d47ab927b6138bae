"""One optimizer for each parameter set, with the set's own options and scheduled learning rate and betas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from errors import UserError, nearest


@dataclass
class AdamOptions:
    """Adam (arXiv:1412.6980); ``weight_decay`` is added to the gradient."""

    name: str = "adam"
    lr: float = 2e-4
    beta1: float = 0.0
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass
class AdamWOptions:
    """Adam with decoupled weight decay (arXiv:1711.05101)."""

    name: str = "adamw"
    lr: float = 2e-4
    beta1: float = 0.0
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.01


@dataclass
class SGDOptions:
    """Stochastic gradient descent, with momentum if asked."""

    name: str = "sgd"
    lr: float = 1e-2
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass
class RMSpropOptions:
    """RMSprop (Hinton's lecture 6e), WGAN's optimizer; ``alpha`` is the smoothing constant."""

    name: str = "rmsprop"
    lr: float = 5e-5
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0


OPTIMIZERS: dict[str, type] = {
    "adam": AdamOptions,
    "adamw": AdamWOptions,
    "sgd": SGDOptions,
    "rmsprop": RMSpropOptions,
}

BETAS = ("beta1", "beta2")


def optimizer_fields(name: str) -> list[str]:
    """The option names of an optimizer, without its name."""
    if name not in OPTIMIZERS:
        raise UserError(f"optim={name}: unknown optimizer, {nearest(name, OPTIMIZERS)}")
    return [f.name for f in fields(OPTIMIZERS[name]) if f.name != "name"]


def _check(options: Any, where: str) -> None:
    for f in fields(options):
        value = getattr(options, f.name)
        if f.name in ("lr", "eps", "weight_decay") and value < 0:
            raise UserError(f"{where}.{f.name}={value}: must not be negative")
        if f.name in (*BETAS, "momentum", "alpha") and not 0 <= value < 1:
            raise UserError(f"{where}.{f.name}={value}: must be in [0, 1)")


def _build(options: Any, parameters: list[nn.Parameter], device: torch.device) -> torch.optim.Optimizer:
    # fused kernels exist on both and update in one pass
    fused = {"fused": True} if device.type in ("cuda", "cpu") else {}
    if isinstance(options, AdamOptions | AdamWOptions):
        kind = torch.optim.AdamW if isinstance(options, AdamWOptions) else torch.optim.Adam
        betas = (float(options.beta1), float(options.beta2))  # torch refuses integers
        return kind(parameters, lr=options.lr, betas=betas, eps=options.eps, weight_decay=options.weight_decay, **fused)
    if isinstance(options, SGDOptions):
        return torch.optim.SGD(
            parameters,
            lr=options.lr,
            momentum=options.momentum,
            nesterov=options.nesterov,
            weight_decay=options.weight_decay,
            **fused,
        )
    return torch.optim.RMSprop(
        parameters,
        lr=options.lr,
        alpha=options.alpha,
        eps=options.eps,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )


class SetOptimizer:
    """The optimizer of one parameter set.

    own   the set's ``optim.<set>`` options; they win over the common ones. A scheduled lr shapes a set's own lr in
          proportion; a scheduled beta does not touch a set that states its own.
    lazy  intervals k of the set's lazy regularizers: lr * c and beta ** c with c = k / (k + 1) for each.
    """

    def __init__(
        self,
        name: str,
        common: Mapping[str, Any],
        own: Mapping[str, Any],
        parameters: list[nn.Parameter],
        device: torch.device,
        lazy: list[int],
        base_lr: float | None = None,
    ):
        self.name, self.own, self.parameters, self.device = name, dict(own), parameters, device
        self.options = OPTIMIZERS[common["name"]](**{**common, **own})
        self.base_lr = common["lr"] if base_lr is None else base_lr
        self.c = 1.0
        for interval in lazy:
            self.c *= interval / (interval + 1)
        _check(self.options, f"optim.{name}" if own else "optim")
        self.reset()

    def reset(self) -> None:
        """Start anew, without any moments."""
        self.optimizer = _build(self.options, self.parameters, self.device)
        self.set_values({})

    def set_values(self, values: Mapping[str, float]) -> None:
        """Take over the scheduled ones among this optimizer's options."""
        group = self.optimizer.param_groups[0]
        lr = self.options.lr
        if "lr" in values:
            lr = values["lr"] if "lr" not in self.own else lr * values["lr"] / self.base_lr if self.base_lr else lr
        group["lr"] = lr * self.c
        if "betas" in group:
            betas = [values.get(b, getattr(self.options, b)) if b not in self.own else self.own[b] for b in BETAS]
            group["betas"] = tuple(float(b) ** self.c for b in betas)
        for option in ("momentum", "alpha", "weight_decay", "eps"):
            if option in group and option in values and option not in self.own:
                group[option] = values[option]


def build_optimizers(
    optim: Mapping[str, Any],
    sets: Mapping[str, list[nn.Parameter]],
    lazy: Mapping[str, list[int]],
    device: torch.device,
    base_lr: float | None = None,
) -> dict[str, SetOptimizer]:
    """Optimizers by set name from the ``optim`` section (common options, plus a mapping for each set that differs).

    base_lr: what scheduled learning rates are in proportion to, for sets with their own; None: ``optim["lr"]``.
    """
    common = {k: v for k, v in optim.items() if not isinstance(v, Mapping)}
    own = {k: dict(v) for k, v in optim.items() if isinstance(v, Mapping)}
    for name in own:
        if name not in sets:
            raise UserError(f"optim.{name}: this GAN has no parameter set of that name, {nearest(name, sets)}")
    return {
        name: SetOptimizer(name, common, own.get(name, {}), parameters, device, list(lazy.get(name, [])), base_lr)
        for name, parameters in sets.items()
    }
