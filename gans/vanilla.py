"""Vanilla GAN: Goodfellow et al. Generative adversarial networks (arXiv:1406.2661).

Objective, s = sigmoid:
    min_G max_D  E[log s(D(x))] + E[log(1 - s(D(G(z))))]         (loss=minimax: eq. 1)
    G instead:   max E[log s(D(G(z)))]                           (loss=nonsaturating, section 3: the default)

Perceptrons: images are rows of pixels. They are also the networks for points in the plane (dataset=ring, grid, swiss_roll).
Against the paper's: LeakyReLU in D in place of maxout and dropout, Adam in place of momentum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from errors import UserError
from gans.adversarial import AdversarialGAN, AdversarialOptions
from gans.networks import label_count
from gans.options import at_least, one_of, share
from losses import AdversarialLoss, Penalty
from nets.discriminator import CONDITIONINGS
from nets.initialise import INITS, initialise
from nets.mlp import MLPDiscriminator, MLPGenerator

MOST_LAYERS = 100
MOST_PARAMETERS = 100_000_000  # of one network, more than any use of perceptrons here; 256 px RGB would exceed it


@dataclass
class VanillaOptions(AdversarialOptions):
    """z_dim, width, depth  size of the latent, of the hidden layers, and their number in either network.
    conditioning          none, concat (class vector beside z and pixels) or projection.
    embedding_dim         size of a class's vector, where labels are an input.
    dropout               of D's hidden features.
    init                  paper (the network's own), normal, kaiming or orthogonal.
    """

    name: str = "vanilla"
    z_dim: int = 100
    width: int = 512
    depth: int = 3
    conditioning: str = "none"
    embedding_dim: int = 64
    dropout: float = 0.0
    init: str = "paper"

    def check(self) -> None:
        super().check()
        for name in ("z_dim", "width", "depth", "embedding_dim"):
            at_least(f"gan.{name}", getattr(self, name), 1)
        if self.depth > MOST_LAYERS:
            raise UserError(f"gan.depth={self.depth}: at most {MOST_LAYERS}")
        one_of("gan.conditioning", self.conditioning, CONDITIONINGS)
        one_of("gan.init", self.init, INITS)
        share("gan.dropout", self.dropout)


class Vanilla(AdversarialGAN):
    """Two perceptrons that share each step's fakes."""

    Options = VanillaOptions
    shares_fake = True

    def __init__(self, options: VanillaOptions, spec: Any, loss: AdversarialLoss, penalty: Penalty):
        options.check()
        _check_size(options, spec)
        classes = label_count(options.name, spec, options.conditioning)
        shape = (options.width, spec.resolution, spec.channels)
        labels = dict(depth=options.depth, classes=classes, embedding_dim=options.embedding_dim)
        generator = MLPGenerator(options.z_dim, *shape, **labels, bounded=spec.kind == "images")
        discriminator = MLPDiscriminator(*shape, **labels, conditioning=options.conditioning, dropout=options.dropout)
        if options.init != "paper":
            initialise(generator, options.init)
            initialise(discriminator, options.init)
        super().__init__(generator, discriminator, loss, penalty, options, options.z_dim, bool(classes))


def _check_size(options: VanillaOptions, spec: Any) -> None:
    """UserError, before they are allocated, for networks that are too large to be meant."""
    values, hidden = spec.channels * spec.resolution**2, options.depth - 1
    found = values * options.width + hidden * options.width**2
    if found <= MOST_PARAMETERS:
        return
    # the root of values w + hidden w^2 = MOST_PARAMETERS, in a form that holds for hidden = 0
    widest = int(2 * MOST_PARAMETERS / (values + math.sqrt(values**2 + 4 * hidden * MOST_PARAMETERS)))
    ways = [f"a gan.width of at most {widest}"]
    if spec.kind == "images":
        fits = spec.channels * 64**2 * options.width + hidden * options.width**2 <= MOST_PARAMETERS
        ways = [*(["dataset.resolution=64"] if spec.resolution > 64 and fits else []), *ways, "gan=dcgan"]
    channels = "1 channel" if spec.channels == 1 else f"{spec.channels} channels"
    size = f"{spec.resolution}x{spec.resolution} pixels of {channels}" if spec.kind == "images" else "points"
    raise UserError(
        f"gan=vanilla: {size} take {found / 1e6:.0f} million parameters a network at gan.width={options.width} "
        f"gan.depth={options.depth}, allowed: {MOST_PARAMETERS / 1e6:.0f} million; set {' or '.join(ways)}"
    )
