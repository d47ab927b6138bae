"""R3GAN: Huang, Gokaslan, Kuleshov, Tompkin. The GAN is dead; long live the GAN! A modern baseline GAN (arXiv:2501.05441).

Objective, f = softplus, z and a real image x paired at random:
    D:  E[f(-(D(x) - D(G(z))))] + gamma/2 E||grad D(x)||^2 + gamma/2 E||grad D(G(z))||^2      (loss=relativistic penalty=r1_r2)
    G:  E[f(-(D(G(z)) - D(x)))]

The relativistic pairing loss has no bad local minima for missed modes; R1 and R2 together make its training converge locally.
With a loss that needs no further tricks, the networks are plain: grouped residual blocks with fix-up initialisation, FIR
resampling, LeakyReLU. Against StyleGAN2: no mapping network, styles, noise, normalisation, minibatch statistics, equalised
learning rate, path-length or lazy regularisation. Gamma, learning rate, Adam's beta2, EMA half-life and augmentation follow
cosine schedules (the recipes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from errors import UserError
from gans.adversarial import AdversarialGAN, AdversarialOptions
from gans.networks import check_patch, images_only, patch_discriminator
from losses import AdversarialLoss, Penalty
from nets.r3gan import Discriminator, Generator


@dataclass
class R3GANOptions(AdversarialOptions):
    """width, cardinality   channels and groups of the 4x4 stage and of ``full_width_stages`` stages in all; each further
                            stage has half of both.
    blocks, expansion       residual blocks in a stage; channels inside a block, in widths.
    z_dim, embedding_dim    size of the latent, and of the generator's class embedding (the discriminator's has ``width``).
    conditional             None: if the data has classes.
    discriminator           r3gan, or patch: PatchGAN's (arXiv:1611.07004), without a norm, told the class by projection.
    patch_field, patch_loss, patch_width  of discriminator=patch: pixels that a logit sees (None: 70), logits averaged before the
                            loss or each judged (None: averaged), channels of its first layer (None: 64).
    low_precision_stages_g/d  stages of highest resolution that compute in the run's low precision.
    """

    name: str = "r3gan"
    width: int = 768
    cardinality: int = 96
    blocks: int = 2
    expansion: int = 2
    z_dim: int = 64
    embedding_dim: int = 64
    conditional: bool | None = None
    discriminator: str = "r3gan"
    patch_field: int | None = None
    patch_loss: str | None = None
    patch_width: int | None = None
    full_width_stages: int = 4
    low_precision_stages_g: int = 3
    low_precision_stages_d: int = 3


class R3GAN(AdversarialGAN):
    """The paper's networks for ``spec`` (resolution, channels, classes, name of the data) under any loss and penalty."""

    Options = R3GANOptions

    def __init__(self, options: R3GANOptions, spec: Any, loss: AdversarialLoss, penalty: Penalty):
        options.check()
        images_only(options.name, spec)
        conditional = bool(spec.classes) if options.conditional is None else options.conditional
        if conditional and not spec.classes:
            raise UserError(f"gan.conditional=true needs labels, and dataset {spec.name} has none")
        widths, cardinalities = stage_widths(options, spec)
        classes = spec.classes if conditional else 0
        shape = dict(blocks=options.blocks, expansion=options.expansion, classes=classes, channels=spec.channels)
        check_patch(options, ("r3gan", "patch"), ("patch_field", "patch_loss", "patch_width"))
        if options.discriminator == "patch":
            discriminator = patch_discriminator(
                options.patch_field or 70, options.patch_width or 64, spec, norm="none", classes=classes,
                conditioning="projection" if classes else "none",
            )  # fmt: skip
        else:
            discriminator = Discriminator(widths[::-1], cardinalities[::-1], embedding_dim=options.width, **shape)
        super().__init__(
            Generator(options.z_dim, widths, cardinalities, embedding_dim=options.embedding_dim, **shape),
            discriminator,
            loss,
            penalty,
            options,
            z_dim=options.z_dim,
            conditional=conditional,
        )

    def set_precision(self, dtype: torch.dtype | None) -> None:
        self.generator.set_precision(dtype, stages=self.options.low_precision_stages_g)
        stages = {} if self.options.discriminator == "patch" else {"stages": self.options.low_precision_stages_d}
        self.discriminator.set_precision(dtype, **stages)


def stage_widths(options: R3GANOptions, spec: Any) -> tuple[list[int], list[int]]:
    """Widths and cardinalities of the stages from 4x4 up to ``spec.resolution``; UserError where they do not work out."""
    stages = spec.resolution.bit_length() - 2
    if spec.resolution < 8 or spec.resolution & (spec.resolution - 1):
        raise UserError(
            f"gan=r3gan needs a power-of-two resolution from 8; dataset {spec.name} has {spec.resolution}: "
            f"set dataset.resolution, e.g. {max(8, 1 << max(0, spec.resolution.bit_length() - 1))}"
        )
    for name in ("width", "cardinality", "blocks", "expansion", "z_dim", "embedding_dim", "full_width_stages"):
        if getattr(options, name) < 1:
            raise UserError(f"gan.{name}={getattr(options, name)} must be at least 1")
    for name in ("low_precision_stages_g", "low_precision_stages_d"):
        if getattr(options, name) < 0:
            raise UserError(f"gan.{name}={getattr(options, name)} must not be negative")
    if options.width % options.cardinality:
        raise UserError(f"gan.width={options.width} must be a multiple of gan.cardinality={options.cardinality}")
    halvings = [max(0, stage + 1 - options.full_width_stages) for stage in range(stages)]
    for name in ("width", "cardinality"):
        if getattr(options, name) % 2 ** halvings[-1]:
            raise UserError(
                f"gan.{name}={getattr(options, name)} cannot be halved {halvings[-1]} times: resolution {spec.resolution} has "
                f"{stages} stages, of which gan.full_width_stages={options.full_width_stages} keep the full width"
            )
    return [options.width >> k for k in halvings], [options.cardinality >> k for k in halvings]
