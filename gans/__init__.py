"""The models: one file a paper, found by name in the plain registry ``GANS``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gans.acgan import ACGAN
from gans.adversarial import AdversarialOptions
from gans.base import GAN, Batch, Clock, Phase
from gans.cgan import CGAN
from gans.dcgan import DCGAN
from gans.lsgan import LSGAN
from gans.r3gan import R3GAN
from gans.vanilla import Vanilla
from gans.wgan import WGAN
from gans.wgan_gp import WGANGP
from losses import build_loss, build_penalty

GANS: dict[str, type[GAN]] = {
    "vanilla": Vanilla,
    "dcgan": DCGAN,
    "cgan": CGAN,
    "acgan": ACGAN,
    "wgan": WGAN,
    "wgan_gp": WGANGP,
    "lsgan": LSGAN,
    "r3gan": R3GAN,
}
"""Name (``gan=<name>``) -> class. A class has ``Options``, a dataclass with the same ``name`` as default, and is built as
``cls(options, spec, loss, penalty)``."""


def build(options: Any, spec: Any, loss: Mapping[str, Any], penalty: Mapping[str, Any]) -> GAN:
    """A freshly initialised GAN for images of ``spec`` (resolution, channels, classes)."""
    return GANS[options.name](options, spec, build_loss(loss), build_penalty(penalty))


__all__ = ["GAN", "GANS", "AdversarialOptions", "Batch", "Clock", "Phase", "build"]
