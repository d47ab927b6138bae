"""ACGAN: Odena, Olah, Shlens. Conditional image synthesis with auxiliary classifier GANs (arXiv:1610.09585).

Objective, C(y | x) the class head of D:
    D:  -E[log s(D(x))] - E[log(1 - s(D(G(z, y))))] - w_d (E[log C(y | x)] + E[log C(y | G(z, y))])
    G:  -E[log s(D(G(z, y)))]                       - w_g  E[log C(y | G(z, y))]

Against cGAN: D is never told the label; it has to tell it, of reals and fakes alike. Networks: DCGAN's, with a second head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gans.adversarial import AdversarialGAN
from gans.base import Batch
from gans.networks import NetworkOptions, images_only, label_count, networks
from gans.options import at_least
from losses import AdversarialLoss, Penalty, auxiliary_cross_entropy


@dataclass
class ACGANOptions(NetworkOptions):
    """class_weight_d, class_weight_g: weights of the cross-entropy in D's and in G's loss."""

    name: str = "acgan"
    class_weight_d: float = 1.0
    class_weight_g: float = 1.0

    def check(self) -> None:
        super().check()
        for name in ("class_weight_d", "class_weight_g"):
            at_least(f"gan.{name}", getattr(self, name), 0)

    @property
    def other_generator_terms(self) -> bool:
        return self.class_weight_g > 0


class ACGAN(AdversarialGAN):
    """DCGAN's networks with a class head in D. D's phase also reports ``class_accuracy``, on reals."""

    Options = ACGANOptions
    shares_fake = True

    def __init__(self, options: ACGANOptions, spec: Any, loss: AdversarialLoss, penalty: Penalty):
        images_only(options.name, spec)
        classes = label_count(options.name, spec)
        generator, discriminator = networks(options, spec, classes, class_head=True)
        super().__init__(generator, discriminator, loss, penalty, options, options.z_dim, conditional=True)

    def more_discriminator_terms(self, batch: Batch, real_features: Tensor, fake_features: Tensor) -> dict[str, Tensor]:
        real, fake = self.discriminator.class_logits(real_features), self.discriminator.class_logits(fake_features)
        batch.report("class_accuracy", (real.argmax(1) == batch.labels).float())
        weight = self.options.class_weight_d
        return {
            "class_real": weight * auxiliary_cross_entropy(real, batch.labels),
            "class_fake": weight * auxiliary_cross_entropy(fake, batch.labels),
        }

    def more_generator_terms(self, batch: Batch, fake_features: Tensor) -> dict[str, Tensor]:
        scores = self.discriminator.class_logits(fake_features)
        return {"class": self.options.class_weight_g * auxiliary_cross_entropy(scores, batch.labels)}
