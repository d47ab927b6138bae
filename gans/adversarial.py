"""The wiring shared by every GAN of one generator, one discriminator, one adversarial loss and one penalty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from errors import UserError
from gans.base import GAN, Batch, Clock, Phase
from gans.options import at_least, one_of
from gans.pairs import check_pairs
from losses import AdversarialLoss, Penalty, PenaltyPoint, clip_weights_, feature_matching, per_patch

FEATURE_DISTANCES = ("squared", "l1")
PATCH_LOSSES = ("averaged", "each")


@dataclass
class AdversarialOptions:
    """Options of every model of one G and one D.

    discriminator_steps    D's updates for each of G's, each on a fresh batch.
    generator_batch_scale  G's batch, in batches of D.
    instance_noise         standard deviation of Gaussian noise on all that D sees (arXiv:1610.04490); schedule.instance_noise.
    weight_clip            D's parameters are kept within +- this (arXiv:1701.07875); None: free.
    feature_matching       weight in G's loss of the distance between the mean features of D (arXiv:1606.03498).
    feature_distance       squared or l1 (None: squared).
    adversarial_weight     weight in G's loss of the adversarial term; 0 leaves feature matching alone, as in that paper.
    """

    discriminator_steps: int = 1
    generator_batch_scale: float = 1.0
    instance_noise: float = 0.0
    weight_clip: float | None = None
    feature_matching: float = 0.0
    feature_distance: str | None = None
    adversarial_weight: float = 1.0

    def check(self) -> None:
        """UserError, in one line, for a value that is not allowed."""
        at_least("gan.discriminator_steps", self.discriminator_steps, 1)
        for name in ("instance_noise", "feature_matching", "adversarial_weight"):
            at_least(f"gan.{name}", getattr(self, name), 0)
        if self.feature_distance is not None:
            one_of("gan.feature_distance", self.feature_distance, FEATURE_DISTANCES)
            if not self.feature_matching:
                raise UserError(f"gan.feature_distance={self.feature_distance}: acts on nothing; set gan.feature_matching too")
        if not self.generator_batch_scale > 0:
            raise UserError(f"gan.generator_batch_scale={self.generator_batch_scale}: must be above 0")
        if self.weight_clip is not None and not self.weight_clip > 0:
            raise UserError(f"gan.weight_clip={self.weight_clip}: must be above 0, or null for no clipping")
        if not self.adversarial_weight and not self.feature_matching and not self.other_generator_terms:
            raise UserError("gan.adversarial_weight=0: leaves G without a loss; set gan.feature_matching above 0")

    @property
    def other_generator_terms(self) -> bool:
        """Whether a model's G has terms besides the adversarial one and feature matching."""
        return False


class AdversarialGAN(GAN):
    """D and G in turn.

    D: mean_i loss.discriminator(D(real_i), D(fake_i)) + penalty;  G: mean_i loss.generator(D(real_i), D(fake_i)).

    Fakes take the labels of their phase's reals. D sees real and fake in separate forwards, augmented and, if asked for, noisy,
    in both phases alike: G is to be judged by the question that D was trained on. The penalty is taken with respect to the
    images before augmentation and noise, in the same backward. A penalty with interval k > 1 becomes a phase of its own on D,
    every k steps, as often as D is updated in a step, and times k. A discriminator of patches answers with a map of logits
    (n, h, w), which is averaged before the loss, or judged patch by patch and then averaged (``patch_loss="each"``); penalties
    differentiate the average.

    Besides its terms, the discriminator phase reports the mean logits, ``sign_real`` (share of D(real) above the loss's boundary,
    0 for most), ``real_above_fake`` (share of pairs with D(real) > D(fake)), the unweighted penalties, and the receptive field
    of a discriminator of patches.

    shares_fake  D's and G's phase judge the same fakes, so that G runs once a step; each draws its own otherwise.
    """

    shares_fake: ClassVar[bool] = False

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        loss: AdversarialLoss,
        penalty: Penalty,
        options: AdversarialOptions,
        z_dim: int,
        conditional: bool = False,
    ):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.loss, self.penalty, self.options = loss, penalty, options
        self.z_dim, self.conditional = z_dim, conditional
        self.patch_loss = getattr(options, "patch_loss", None) or "averaged"
        # a relativistic D has no zero point: what it recognises is the order within pairs
        self.recognises_reals = f"discriminator/{'real_above_fake' if loss.relativistic else 'sign_real'}"
        self.warnings = check_pairs(self)
        self._clip()

    def remarks(self) -> list[str]:
        field = getattr(self.discriminator, "receptive_field", None)
        patches = f"discriminator of patches: each logit sees {field}x{field} pixels ({self.patch_loss})"
        return ([] if field is None else [patches]) + self.warnings

    def phases(self) -> list[Phase]:
        options, shared = self.options, self.shares
        phases = [
            Phase(
                "discriminator", trains="discriminator", loss=self.discriminator_loss, repeats=self.discriminator_repeats(),
                after_update=None if options.weight_clip is None else self._clip, keeps_graph=("generator",) if shared else (),
            ),
            Phase(
                "generator", trains="generator", loss=self.generator_loss, batch_scale=options.generator_batch_scale,
                same_batch_as="discriminator" if shared else None,
            ),
        ]  # fmt: skip
        if self.penalty.interval > 1:
            k = self.penalty.interval
            often = dict(interval=k, repeats=self.discriminator_repeats(), lazy=True)
            phases.append(Phase("penalty", trains="discriminator", loss=self.lazy_penalty, **often))
        return phases

    @property
    def shares(self) -> bool:
        """Whether the phases share their fakes: the model does, and both use one batch of the same size."""
        return self.shares_fake and self.options.discriminator_steps == 1 and self.options.generator_batch_scale == 1

    def discriminator_repeats(self) -> int | Callable[[Clock], int]:
        """D's updates in a step."""
        return self.options.discriminator_steps

    def schedules(self) -> dict[str, float]:
        return {**self.penalty.schedules(), "instance_noise": self.options.instance_noise}

    def batch_coupled(self) -> list[str]:
        parts = {
            f"loss {type(self.loss).__name__}": self.loss.batch_coupled,
            f"penalty {type(self.penalty).__name__}": self.penalty.batch_coupled,
            "feature matching": self.options.feature_matching > 0,
        }
        return super().batch_coupled() + [name for name, coupled in parts.items() if coupled]

    def set_precision(self, dtype: torch.dtype | None) -> None:
        for network in (self.generator, self.discriminator):
            network.set_precision(dtype)

    # what the phases are made of -------------------------------------------------------------------------------------------

    def generate(self, batch: Batch) -> Tensor:
        """Fakes (n, c, h, w) from the phase's own latents and the labels of its reals."""
        batch.reseed_layers("generator")
        z = batch.draw("z", self.z_dim)
        return self.generator(z, batch.labels) if self.conditional else self.generator(z)

    def judge(self, batch: Batch, images: Tensor, purpose: str) -> tuple[Tensor, Tensor]:
        """(features (n, …), logits (n,) or, patch by patch, (n, h, w)) of ``images`` as D sees them."""
        images = batch.augment(images, purpose)
        noise = self.values.get("instance_noise", self.options.instance_noise)
        if noise:
            images = images + noise * batch.draw(f"instance noise {purpose}", tuple(images.shape[1:]))
        labels = batch.labels if self.conditional else None
        features = self.discriminator.features(images, labels)
        logits = self.discriminator.logits(features, labels)
        return features, logits.mean((1, 2)) if logits.ndim == 3 and self.patch_loss == "averaged" else logits

    def discriminator_loss(self, batch: Batch) -> dict[str, Tensor]:
        penalised = self.penalty.interval == 1
        real, fake = self.real_and_fake(batch, with_grad=penalised, share=self.shares)
        real_features, real_logits = self.judge(batch, real, "real")
        fake_features, fake_logits = self.judge(batch, fake, "fake")
        terms = {"adversarial": _judged(self.loss.discriminator, real_logits, fake_logits)}
        terms |= self.more_discriminator_terms(batch, real_features, fake_features)
        real_logits, fake_logits = _per_sample(real_logits), _per_sample(fake_logits)
        batch.report("logits_real", real_logits.detach())
        batch.report("logits_fake", fake_logits.detach())
        batch.report("sign_real", (real_logits > self.loss.boundary).float())
        batch.report("real_above_fake", (real_logits > fake_logits).float())
        field = getattr(self.discriminator, "receptive_field", None)
        if field is not None:
            batch.report("receptive_field", real_logits.new_full((), float(field)))
        if penalised:
            terms |= self.penalty_terms(batch, real, fake, real_logits, fake_logits)
        return terms

    def generator_loss(self, batch: Batch) -> dict[str, Tensor]:
        options = self.options
        fake = self.reuse(batch, "fake", lambda: self.generate(batch)) if self.shares else self.generate(batch)
        fake_features, fake_logits = self.judge(batch, fake, "fake")
        real_features = real_logits = None
        if self.loss.needs_real or options.feature_matching:
            with torch.no_grad():
                real_features, real_logits = self.judge(batch, batch.images, "real")
        terms = {}
        if options.adversarial_weight:
            real_logits = real_logits if self.loss.needs_real else None
            terms["adversarial"] = options.adversarial_weight * _judged(self.loss.generator, real_logits, fake_logits)
        if options.feature_matching:
            distance = feature_matching(real_features, fake_features, options.feature_distance or "squared")
            terms["feature_matching"] = options.feature_matching * distance
        return terms | self.more_generator_terms(batch, fake_features)

    def more_discriminator_terms(self, batch: Batch, real_features: Tensor, fake_features: Tensor) -> dict[str, Tensor]:
        """Terms that a model adds to D's loss."""
        return {}

    def more_generator_terms(self, batch: Batch, fake_features: Tensor) -> dict[str, Tensor]:
        """Terms that a model adds to G's loss."""
        return {}

    def lazy_penalty(self, batch: Batch) -> dict[str, Tensor]:
        if "fake" in self.penalty.looks_at:
            real, fake = self.real_and_fake(batch, with_grad=True)
        else:
            real, fake = batch.images.detach().requires_grad_("real" in self.penalty.differentiates), None
        terms = self.penalty_terms(batch, real, fake)
        return {name: self.penalty.interval * term for name, term in terms.items()}

    def real_and_fake(self, batch: Batch, with_grad: bool, share: bool = False) -> tuple[Tensor, Tensor]:
        """The phase's reals and fakes, cut from G's graph; those the penalty differentiates require grad.

        share: leave the fakes, with their graph, to the generator's phase.
        """
        if share:
            fake = self.generate(batch)
            batch.share(fake=fake)
        else:
            with torch.no_grad():
                fake = self.generate(batch)
        wanted = self.penalty.differentiates if with_grad else ()
        images = {"real": batch.images, "fake": fake}
        images = {side: x.detach().requires_grad_(side in wanted) for side, x in images.items()}
        return images["real"], images["fake"]

    def penalty_terms(
        self,
        batch: Batch,
        real: Tensor,
        fake: Tensor | None,
        real_logits: Tensor | None = None,
        fake_logits: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The weighted penalties (n,) by name at the current weight; reports the unweighted ones."""
        at = PenaltyPoint(
            discriminator=lambda images, purpose: _per_sample(self.judge(batch, images, purpose)[1]),
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

    def _clip(self) -> None:
        if self.options.weight_clip is not None:
            clip_weights_(self.discriminator, self.options.weight_clip)


def _per_sample(logits: Tensor) -> Tensor:
    """(n,) or (n, h, w) -> (n,)."""
    return logits if logits.ndim == 1 else logits.mean((1, 2))


def _judged(loss: Callable[..., Tensor], real_logits: Tensor | None, fake_logits: Tensor) -> Tensor:
    """The loss (n,) of logits (n,), or its mean over patches of logits (n, h, w)."""
    return loss(real_logits, fake_logits) if fake_logits.ndim == 1 else per_patch(loss, real_logits, fake_logits)
