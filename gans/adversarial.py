"""The wiring shared by every GAN of one generator, one discriminator, one adversarial loss and one penalty."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gans.base import GAN, Batch, Phase
from losses import AdversarialLoss, Penalty, PenaltyPoint


class AdversarialGAN(GAN):
    """D and G in turn, each on its own batch.

    D: mean_i loss.discriminator(D(real_i), D(fake_i)) + penalty;  G: mean_i loss.generator(D(real_i), D(fake_i)).

    Fakes take the labels of their phase's reals. D sees augmented reals and fakes in separate forwards; the penalty is taken
    with respect to the images before augmentation, in the same backward. A penalty with interval k > 1 becomes a phase of
    its own on D, every k steps and times k. Besides its terms, the discriminator phase reports the mean logits, ``sign_real``
    (share of D(real) above the loss's boundary, 0 for most), ``real_above_fake`` (share of pairs with D(real) > D(fake)) and
    the unweighted penalties.
    """

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        loss: AdversarialLoss,
        penalty: Penalty,
        z_dim: int,
        conditional: bool = False,
    ):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.loss, self.penalty = loss, penalty
        self.z_dim, self.conditional = z_dim, conditional
        # a relativistic D has no zero point: what it recognises is the order within pairs
        self.recognises_reals = f"discriminator/{'real_above_fake' if loss.relativistic else 'sign_real'}"

    def phases(self) -> list[Phase]:
        phases = [
            Phase("discriminator", trains="discriminator", loss=self.discriminator_loss),
            Phase("generator", trains="generator", loss=self.generator_loss),
        ]
        if self.penalty.interval > 1:
            k = self.penalty.interval
            phases.append(Phase("penalty", trains="discriminator", loss=self.lazy_penalty, interval=k, lazy=True))
        return phases

    def schedules(self) -> dict[str, float]:
        return self.penalty.schedules()

    def batch_coupled(self) -> list[str]:
        return super().batch_coupled() + ([f"loss {type(self.loss).__name__}"] if self.loss.batch_coupled else [])

    def generate(self, batch: Batch) -> Tensor:
        """Fakes (n, c, h, w) from the phase's own latents and the labels of its reals."""
        z = batch.draw("z", self.z_dim)
        return self.generator(z, batch.labels) if self.conditional else self.generator(z)

    def judge(self, batch: Batch, images: Tensor, purpose: str) -> Tensor:
        """Logits (n,) of ``images``, augmented under the name ``purpose``."""
        images = batch.augment(images, purpose)
        return self.discriminator(images, batch.labels) if self.conditional else self.discriminator(images)

    def discriminator_loss(self, batch: Batch) -> dict[str, Tensor]:
        penalised = self.penalty.interval == 1
        real, fake = self.real_and_fake(batch, with_grad=penalised)
        real_logits, fake_logits = self.judge(batch, real, "real"), self.judge(batch, fake, "fake")
        batch.report("logits_real", real_logits.detach())
        batch.report("logits_fake", fake_logits.detach())
        batch.report("sign_real", (real_logits > self.loss.boundary).float())
        batch.report("real_above_fake", (real_logits > fake_logits).float())
        terms = {"adversarial": self.loss.discriminator(real_logits, fake_logits)}
        if penalised:
            terms |= self.penalty_terms(batch, real, fake, real_logits, fake_logits)
        return terms

    def generator_loss(self, batch: Batch) -> dict[str, Tensor]:
        fake_logits = self.judge(batch, self.generate(batch), "fake")
        real_logits = None
        if self.loss.needs_real:
            with torch.no_grad():
                real_logits = self.judge(batch, batch.images, "real")
        return {"adversarial": self.loss.generator(real_logits, fake_logits)}

    def lazy_penalty(self, batch: Batch) -> dict[str, Tensor]:
        terms = self.penalty_terms(batch, *self.real_and_fake(batch, with_grad=True))
        return {name: self.penalty.interval * term for name, term in terms.items()}

    def real_and_fake(self, batch: Batch, with_grad: bool) -> tuple[Tensor, Tensor]:
        """The phase's reals and fakes, cut from G's graph; those the penalty differentiates require grad."""
        with torch.no_grad():
            images = {"real": batch.images, "fake": self.generate(batch)}
        wanted = self.penalty.differentiates if with_grad else ()
        images = {side: x.detach().requires_grad_(side in wanted) for side, x in images.items()}
        return images["real"], images["fake"]

    def penalty_terms(
        self, batch: Batch, real: Tensor, fake: Tensor, real_logits: Tensor | None = None, fake_logits: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The weighted penalties (n,) by name at the current weight; reports the unweighted ones."""
        at = PenaltyPoint(
            discriminator=lambda images, purpose: self.judge(batch, images, purpose),
            real=real,
            fake=fake,
            real_logits=real_logits,
            fake_logits=fake_logits,
            draw=batch.draw,
            grad_scale=batch.grad_scale,
        )
        values = self.penalty.values(at)
        for name, value in values.items():
            batch.report(name, value.detach())
        return self.penalty.terms(values, self.values.get(self.penalty.weight_name))
