"""WGAN: Arjovsky, Chintala, Bottou. Wasserstein GAN (arXiv:1701.07875).

Objective, D (the critic) any function with weights in [-c, c]:
    D:  E[D(G(z))] - E[D(x)]          (minus the loss estimates a multiple of the Wasserstein distance)
    G:  -E[D(G(z))]

DCGAN's networks; the critic's value is no probability. Its weights, not its gradients, are clipped to +-0.01 at the start and
after each of its updates, so that every critic step begins within the box. The critic is kept near its optimum: 5 updates
for each of G's, and 100 in the first 25 steps and every 500th, each on fresh reals and fakes. RMSprop with lr 5e-5, since
momentum unsettled the critic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gans.base import Clock
from gans.dcgan import DCGAN, DCGANOptions
from gans.options import at_least


@dataclass
class WGANOptions(DCGANOptions):
    """boosted_steps  the critic's updates in the first ``boosted_for`` steps and in every ``boosted_every``-th one."""

    name: str = "wgan"
    discriminator_steps: int = 5
    weight_clip: float | None = 0.01
    boosted_steps: int = 100
    boosted_for: int = 25
    boosted_every: int = 500

    def check(self) -> None:
        super().check()
        for name, low in (("boosted_steps", 1), ("boosted_for", 0), ("boosted_every", 1)):
            at_least(f"gan.{name}", getattr(self, name), low)


class WGAN(DCGAN):
    """DCGAN's networks under the Wasserstein loss, with a clipped critic that is trained more often than G."""

    Options = WGANOptions
    shares_fake = False

    def discriminator_repeats(self) -> Callable[[Clock], int]:
        return self._repeats

    def _repeats(self, clock: Clock) -> int:
        options = self.options
        boosted = clock.step < options.boosted_for or clock.step % options.boosted_every == 0
        return options.boosted_steps if boosted else options.discriminator_steps
