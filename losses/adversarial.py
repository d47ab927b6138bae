"""Adversarial losses as functions of logits.

r = D(real), f = D(fake), s+ = softplus. Every loss returns one value per sample; means over the batch are the papers'
objectives. Real and fake logits are paired by position: both (n,), anything else is a ValueError, because (n, 1) - (n,)
silently becomes n x n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from errors import nearest
from losses.options import build

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": lambda d: F.softplus(-d),
    "hinge": lambda d: F.relu(1 - d),
    "least_squares": lambda d: (d - 1).square(),
}
"""Loss of a relativistic difference d, falling as d grows (least squares: up to 1)."""


def _check(fake_logits: Tensor, real_logits: Tensor | None = None) -> None:
    shapes = [tuple(t.shape) for t in (real_logits, fake_logits) if t is not None]
    if fake_logits.ndim != 1 or len(set(shapes)) != 1:
        raise ValueError(f"logits must be (n,), real and fake alike, found {' and '.join(map(str, shapes))}")


@dataclass(frozen=True)
class AdversarialLoss:
    """A pair of losses. Subclasses are dataclasses whose fields are the loss's options, and define ``_d`` and ``_g``.

    needs_real   the generator's loss is a function of the real logits too.
    relativistic logits mean nothing alone, only in differences real - fake (no logit is the boundary of real and fake).
    batch_coupled  a sample's loss depends on the rest of its micro-batch.
    """

    needs_real: ClassVar[bool] = False
    relativistic: ClassVar[bool] = False
    batch_coupled: ClassVar[bool] = False

    @property
    def boundary(self) -> float:
        """The logit above which D takes an image for real; without meaning for relativistic losses."""
        return 0.0

    def discriminator(self, real_logits: Tensor, fake_logits: Tensor) -> Tensor:
        """(n,), (n,) -> (n,): what the discriminator minimises."""
        _check(fake_logits, real_logits)
        return self._d(real_logits, fake_logits)

    def generator(self, real_logits: Tensor | None, fake_logits: Tensor) -> Tensor:
        """(n,) or None, (n,) -> (n,): what the generator minimises. ValueError if it needs real logits and gets none."""
        if self.needs_real and real_logits is None:
            raise ValueError(f"the generator's {type(self).__name__} loss needs the real logits")
        _check(fake_logits, real_logits if self.needs_real else None)
        return self._g(real_logits, fake_logits)

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        raise NotImplementedError

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Minimax(AdversarialLoss):
    """D: s+(-r) + s+(f);  G: -s+(f) = log(1 - sigmoid(f)), which saturates where D is sure (arXiv:1406.2661, eq. 1).

    label_smoothing: s in [0, 1) lowers D's target for reals, and for them alone, from 1 to 1 - s (arXiv:1606.03498,
    section 3.4); their term becomes (1 - s) s+(-r) + s s+(r).
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0 and below 1")

    @property
    def boundary(self) -> float:
        """Where D's two targets are equally far: half of 1 - s as a logit, which is the best D's at equal densities."""
        return math.log1p(-self.label_smoothing) - math.log1p(self.label_smoothing)

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        as_real = F.softplus(-real)
        if self.label_smoothing:  # (1 - s) s+(-r) + s s+(r), for s+(r) = s+(-r) + r
            as_real = as_real + self.label_smoothing * real
        return as_real + F.softplus(fake)

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return -F.softplus(fake)


@dataclass(frozen=True)
class NonSaturating(Minimax):
    """D as minimax;  G: s+(-f) = -log sigmoid(f) (arXiv:1406.2661, section 3)."""

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return F.softplus(-fake)


@dataclass(frozen=True)
class LeastSquares(AdversarialLoss):
    """D: 1/2 (r - b)^2 + 1/2 (f - a)^2;  G: 1/2 (f - c)^2 (arXiv:1611.04076, eq. 2).

    a, b, c: the targets of fakes and reals for D, and of fakes for G. The paper's two choices: 0, 1, 1 and -1, 1, 0.
    """

    a: float = 0.0
    b: float = 1.0
    c: float = 1.0

    @property
    def boundary(self) -> float:
        return (self.a + self.b) / 2

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return 0.5 * (real - self.b).square() + 0.5 * (fake - self.a).square()

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return 0.5 * (fake - self.c).square()


@dataclass(frozen=True)
class Wasserstein(AdversarialLoss):
    """D (the critic): f - r;  G: -f (arXiv:1701.07875). Needs a critic kept Lipschitz by clipping or a penalty."""

    relativistic: ClassVar[bool] = True  # a critic is defined up to a constant

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return fake - real

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return -fake


@dataclass(frozen=True)
class Hinge(AdversarialLoss):
    """D: relu(1 - r) + relu(1 + f);  G: -f (arXiv:1705.02894)."""

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return F.relu(1 - real) + F.relu(1 + fake)

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return -fake


@dataclass(frozen=True)
class Relativistic(AdversarialLoss):
    """D: F(r - f);  G: F(f - r), real and fake paired by position (arXiv:1807.00734, 2501.05441 eq. 2).

    form: F(d) = s+(-d) (softplus), relu(1 - d) (hinge) or (d - 1)^2 (least_squares).
    """

    form: str = "softplus"

    needs_real: ClassVar[bool] = True
    relativistic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form={self.form} is unknown; {nearest(self.form, FORMS)}")

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return FORMS[self.form](real - fake)

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return FORMS[self.form](fake - real)


@dataclass(frozen=True)
class RelativisticAverage(Relativistic):
    """D: F(r - mean f) + F(mean r - f);  G: F(f - mean r) + F(mean f - r) (arXiv:1807.00734, section 4.2).

    form: F(d) = s+(-d) (softplus), relu(1 - d) (hinge) or (d - 1)^2 (least_squares). The means run over the micro-batch of
    one process.
    """

    batch_coupled: ClassVar[bool] = True

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return super()._d(real, fake.mean()) + super()._d(real.mean(), fake)

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return super()._g(real.mean(), fake) + super()._g(real, fake.mean())


LOSSES: dict[str, type[AdversarialLoss]] = {
    "minimax": Minimax,
    "nonsaturating": NonSaturating,
    "lsgan": LeastSquares,
    "wasserstein": Wasserstein,
    "hinge": Hinge,
    "relativistic": Relativistic,
    "relativistic_average": RelativisticAverage,
}


def build_loss(options: Mapping[str, Any]) -> AdversarialLoss:
    """The loss named by ``options["name"]`` with its options; UserError for an unknown name, option or type."""
    return build(LOSSES, options, "loss")


def per_patch(loss: Callable[..., Tensor], *logit_maps: Tensor | None) -> Tensor:
    """A loss of (n,) logits, such as ``AdversarialLoss.discriminator``, applied to each patch and averaged over a sample's.

    Maps (n, h, w), all alike, or None where the loss takes None -> (n,). Patches are paired by sample and position; what a
    batch-coupled loss averages over is all patches of all samples. ValueError for other shapes, of maps or of the result.
    """
    shapes = [tuple(logits.shape) for logits in logit_maps if logits is not None]
    if not shapes or len(shapes[0]) != 3 or len(set(shapes)) != 1:
        raise ValueError(f"patch logits must be (n, h, w), all alike, found {' and '.join(map(str, shapes)) or 'none'}")
    values = loss(*(None if logits is None else logits.flatten() for logits in logit_maps))
    if values.shape != (n := math.prod(shapes[0]),):
        raise ValueError(f"a loss of {n} patches must return one value for each, ({n},), found {tuple(values.shape)}")
    return values.unflatten(0, shapes[0]).mean(dim=(1, 2))
