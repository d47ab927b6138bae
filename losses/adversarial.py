"""Adversarial losses as functions of logits.

r = D(real), f = D(fake), s+ = softplus. Every loss returns one value per sample; means over the batch are the papers'
objectives. Real and fake logits are paired by position: both (n,), anything else is a ValueError, because (n, 1) - (n,)
silently becomes n x n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from losses.options import build


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
    """D: s+(-r) + s+(f);  G: -s+(f) = log(1 - sigmoid(f)), which saturates where D is sure (arXiv:1406.2661, eq. 1)."""

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return F.softplus(-real) + F.softplus(fake)

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
    """D: s+(-(r - f));  G: s+(-(f - r)), real and fake paired by position (arXiv:1807.00734, 2501.05441 eq. 2)."""

    needs_real: ClassVar[bool] = True
    relativistic: ClassVar[bool] = True

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return F.softplus(fake - real)

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return F.softplus(real - fake)


@dataclass(frozen=True)
class RelativisticAverage(AdversarialLoss):
    """D: s+(-(r - mean f)) + s+(f - mean r);  G: s+(-(f - mean r)) + s+(r - mean f) (arXiv:1807.00734, section 4.2).

    The means run over the micro-batch of one process.
    """

    needs_real: ClassVar[bool] = True
    relativistic: ClassVar[bool] = True
    batch_coupled: ClassVar[bool] = True

    def _d(self, real: Tensor, fake: Tensor) -> Tensor:
        return F.softplus(fake.mean() - real) + F.softplus(fake - real.mean())

    def _g(self, real: Tensor | None, fake: Tensor) -> Tensor:
        return F.softplus(real.mean() - fake) + F.softplus(real - fake.mean())


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
