"""Gradient penalties on a discriminator, always with respect to images before augmentation.

A penalty measures named values (n,) at a point, unweighted, and states the factor that turns its weight into a loss:
R1 and R2 enter as gamma/2 * ||grad_i||^2, WGAN-GP as lambda * (||grad_i|| - 1)^2. The weight is given at each use because
the driver may schedule it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from losses.options import build


def image_gradient(logits: Tensor, images: Tensor, grad_scale: float = 1.0) -> Tensor:
    """d logits_i / d images_i (n, c, h, w) in at least fp32, with a graph: it can itself be differentiated.

    ``grad_scale`` multiplies the logits before and divides the fp32 gradient after, so that fp16 layers do not underflow on
    the way. ValueError unless logits are (n,) and images of the same n require grad.
    """
    if logits.ndim != 1 or len(images) != len(logits):
        raise ValueError(f"a penalty needs logits (n,) of n images, found {tuple(logits.shape)} and {tuple(images.shape)}")
    if not images.requires_grad:
        raise ValueError("a penalty needs images that required grad before the discriminator saw them")
    (gradient,) = torch.autograd.grad(logits.sum() * grad_scale, images, create_graph=True)
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / grad_scale


def squared_gradient_norm(logits: Tensor, images: Tensor, grad_scale: float = 1.0) -> Tensor:
    """||d logits_i / d images_i||^2 summed over channels and pixels, (n,); see :func:`image_gradient`."""
    return image_gradient(logits, images, grad_scale).square().sum(dim=(1, 2, 3))


def gradient_norm(logits: Tensor, images: Tensor, grad_scale: float = 1.0) -> Tensor:
    """||d logits_i / d images_i||_2, (n,), whose own gradient is zero, not NaN, where the norm is zero."""
    return torch.linalg.vector_norm(image_gradient(logits, images, grad_scale), dim=(1, 2, 3))


@dataclass
class PenaltyPoint:
    """What a penalty may look at.

    discriminator  (images (n, c, h, w) before augmentation, "real" | "fake" | "mix" for what they are) -> logits (n,);
                   "mix" are images that a penalty made itself.
    real, fake     images; those named by ``Penalty.differentiates`` require grad; fakes may be None if it does not look at them.
    real_logits, fake_logits  the discriminator's, or None where not computed yet.
    draw           per-sample random numbers (n, *shape), as a phase's ``batch.draw``.
    grad_scale     see :func:`image_gradient`.
    """

    discriminator: Callable[[Tensor, str], Tensor]
    real: Tensor
    fake: Tensor | None
    real_logits: Tensor | None = None
    fake_logits: Tensor | None = None
    draw: Callable[..., Tensor] | None = None
    grad_scale: float = 1.0

    def squared_norm(self, side: str) -> Tensor:
        """||grad D||^2 (n,) at the "real" or "fake" images, with the logits at hand if there are any."""
        images, logits = getattr(self, side), getattr(self, f"{side}_logits")
        if logits is None:
            logits = self.discriminator(images, side)
        return squared_gradient_norm(logits, images, self.grad_scale)


@dataclass(frozen=True)
class Penalty:
    """Base class. Subclasses are dataclasses whose fields are the options.

    interval        every how many steps; k > 1 makes it a phase of its own (lazy regularisation, arXiv:1912.04958).
    weight_name     the field that is its weight, and the name under which it may be scheduled.
    factor          loss = factor * weight * value.
    differentiates  which of "real", "fake" must require grad before the discriminator sees them.
    looks_at        which of them it needs at all.
    batch_coupled   a sample's value depends on the rest of its micro-batch.
    """

    weight_name: ClassVar[str | None] = None
    looks_at: ClassVar[tuple[str, ...]] = ("real", "fake")
    factor: ClassVar[float] = 1.0
    differentiates: ClassVar[tuple[str, ...]] = ()
    batch_coupled: ClassVar[bool] = False
    interval: ClassVar[int] = 1

    def values(self, at: PenaltyPoint) -> dict[str, Tensor]:
        """The unweighted values (n,) by name."""
        return {}

    def terms(self, values: Mapping[str, Tensor], weight: float | None = None) -> dict[str, Tensor]:
        """``values`` times factor and weight (default: the option's), ready to be summed into a loss."""
        if weight is None and self.weight_name is not None:
            weight = getattr(self, self.weight_name)
        return {name: self.factor * weight * value for name, value in values.items()}

    def schedules(self) -> dict[str, float]:
        """The weight, by its name, if there is one."""
        return {} if self.weight_name is None else {self.weight_name: getattr(self, self.weight_name)}

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"interval={self.interval} must be at least 1")
        if self.weight_name is not None and getattr(self, self.weight_name) < 0:
            raise ValueError(f"{self.weight_name}={getattr(self, self.weight_name)} must not be negative")


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """None: D's loss is the adversarial one alone."""


@dataclass(frozen=True)
class R1(Penalty):
    """gamma/2 * ||grad D(real)||^2 (arXiv:1801.04406)."""

    gamma: float = 1.0
    interval: int = 1

    weight_name: ClassVar[str] = "gamma"
    factor: ClassVar[float] = 0.5
    differentiates: ClassVar[tuple[str, ...]] = ("real",)
    looks_at: ClassVar[tuple[str, ...]] = ("real",)

    def values(self, at: PenaltyPoint) -> dict[str, Tensor]:
        return {{"real": "r1", "fake": "r2"}[side]: at.squared_norm(side) for side in self.differentiates}


@dataclass(frozen=True)
class R2(R1):
    """gamma/2 * ||grad D(fake)||^2 (arXiv:1801.04406)."""

    differentiates: ClassVar[tuple[str, ...]] = ("fake",)
    looks_at: ClassVar[tuple[str, ...]] = ("fake",)


@dataclass(frozen=True)
class R1R2(R1):
    """gamma/2 * (||grad D(real)||^2 + ||grad D(fake)||^2), with which R3GAN's convergence proof works (arXiv:2501.05441)."""

    differentiates: ClassVar[tuple[str, ...]] = ("real", "fake")
    looks_at: ClassVar[tuple[str, ...]] = ("real", "fake")


@dataclass(frozen=True)
class WGANGP(Penalty):
    """gp_lambda * (||grad D(x_hat)|| - center)^2, x_hat = eps real + (1 - eps) fake, eps ~ U[0, 1) per sample
    (arXiv:1704.00028, eq. 3).

    one_sided: only norms above ``center`` are punished. center=0 with two sides is a zero-centred penalty.
    """

    gp_lambda: float = 10.0
    center: float = 1.0
    one_sided: bool = False
    interval: int = 1

    weight_name: ClassVar[str] = "gp_lambda"

    def values(self, at: PenaltyPoint) -> dict[str, Tensor]:
        x_hat = self.points(at).requires_grad_()
        return {"gp": self.value(gradient_norm(at.discriminator(x_hat, "mix"), x_hat, at.grad_scale))}

    def points(self, at: PenaltyPoint) -> Tensor:
        """x_hat (n, c, h, w), without a graph."""
        return torch.lerp(at.fake.detach(), at.real.detach(), at.draw("mix", (1, 1, 1), "uniform"))

    def value(self, norm: Tensor) -> Tensor:
        """(n,) gradient norms -> (n,) unweighted penalties."""
        excess = norm - self.center
        return (excess.relu() if self.one_sided else excess).square()


@dataclass(frozen=True)
class DRAGAN(WGANGP):
    """gp_lambda * (||grad D(x_hat)|| - center)^2 around the data, x_hat = x + alpha noise std(x) u, with alpha per sample and
    u per pixel ~ U[0, 1) (arXiv:1705.07215, section 2.4; the perturbation is that of its published code).

    one_sided: only norms above ``center`` are punished. noise: size of the perturbation, in standard deviations of all values
    of the micro-batch of one process.
    """

    noise: float = 0.5

    looks_at: ClassVar[tuple[str, ...]] = ("real",)
    batch_coupled: ClassVar[bool] = True

    def points(self, at: PenaltyPoint) -> Tensor:
        real = at.real.detach()
        alpha = at.draw("dragan_alpha", (1, 1, 1), "uniform")
        u = at.draw("dragan_u", tuple(real.shape[1:]), "uniform")
        return real + alpha * self.noise * real.std(correction=0) * u  # correction 0: finite for a single value too

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise < 0:
            raise ValueError(f"noise={self.noise} must not be negative")


PENALTIES: dict[str, type[Penalty]] = {
    "none": NoPenalty,
    "r1": R1,
    "r2": R2,
    "r1_r2": R1R2,
    "wgan_gp": WGANGP,
    "dragan": DRAGAN,
}


def build_penalty(options: Mapping[str, Any]) -> Penalty:
    """The penalty named by ``options["name"]`` with its options; UserError for an unknown name, option, type or value."""
    return build(PENALTIES, options, "penalty")
