"""Pairs of options that make no sense together, with the reason: refused, or warned of once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from errors import UserError
from losses import PENALTIES
from losses.adversarial import Wasserstein

if TYPE_CHECKING:
    from gans.adversarial import AdversarialGAN

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)
NAMES = {penalty: name for name, penalty in PENALTIES.items()}


@dataclass(frozen=True)
class Pair:
    """found: whether a model has both;  text: what is wrong and what to do, with the model's values filled in."""

    found: Callable[[AdversarialGAN], bool]
    text: str
    refused: bool


def _penalised(gan: AdversarialGAN) -> bool:
    return NAMES[type(gan.penalty)] != "none"


def _clipped(gan: AdversarialGAN) -> bool:
    return gan.options.weight_clip is not None


def _spectral(gan: AdversarialGAN) -> bool:
    return getattr(gan.options, "spectral_norm_d", False)


def _bounded(gan: AdversarialGAN) -> bool:
    """Spectral norm bounds a critic if no layer divides by a spread of its input afterwards."""
    return _spectral(gan) and not any(isinstance(m, _NORMS) for m in gan.discriminator.modules())


def _batch_normed(gan: AdversarialGAN) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in gan.discriminator.modules())


PAIRS = (
    Pair(
        lambda gan: _clipped(gan) and _penalised(gan),
        "gan.weight_clip={clip} with penalty={penalty}: two bounds on one slope, and clipping undoes what the penalty teaches; "
        "set gan.weight_clip=null or penalty=none",
        refused=True,
    ),
    Pair(
        lambda gan: _clipped(gan) and _spectral(gan),
        "gan.weight_clip={clip} with gan.spectral_norm_d=true: the norm rescales whatever the clipping leaves; set "
        "gan.weight_clip=null or gan.spectral_norm_d=false",
        refused=True,
    ),
    Pair(
        lambda gan: _batch_normed(gan) and _penalised(gan),
        "warning: penalty={penalty} with BatchNorm in the discriminator: the gradient of an image's logit then depends on the "
        "rest of its batch (arXiv:1704.00028, section 4); gan.norm_d=layer or none avoids it",
        refused=False,
    ),
    Pair(
        lambda gan: isinstance(gan.loss, Wasserstein) and not (_clipped(gan) or _penalised(gan) or _bounded(gan)),
        "warning: loss=wasserstein and nothing that bounds the critic's slope: its loss has no minimum; set penalty=wgan_gp, "
        "gan.weight_clip, or gan.spectral_norm_d=true with gan.norm_d=none",
        refused=False,
    ),
)


def check_pairs(gan: AdversarialGAN) -> list[str]:
    """Warnings for ``gan``, a line each; UserError for the first pair that is refused."""
    found = [pair for pair in PAIRS if pair.found(gan)]
    texts = [pair.text.format(clip=gan.options.weight_clip, penalty=NAMES[type(gan.penalty)]) for pair in found]
    for pair, text in zip(found, texts, strict=True):
        if pair.refused:
            raise UserError(text)
    return texts
