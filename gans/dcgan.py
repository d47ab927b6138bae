"""DCGAN: Radford, Metz, Chintala. Unsupervised representation learning with deep convolutional GANs (arXiv:1511.06434).

Objective, s = sigmoid:
    D:  -E[log s(D(x))] - E[log(1 - s(D(G(z))))]        (loss=nonsaturating, the default)
    G:  -E[log s(D(G(z)))]

The paper is about the networks: strided and transposed convolutions in place of pooling and fully connected layers,
BatchNorm in both, ReLU in G and LeakyReLU 0.2 in D, weights from N(0, 0.02), Adam with lr 2e-4 and beta1 0.5. G runs once a
step: D and then G are trained on the same fakes. The depth follows the resolution; at 64 px the networks are those of
pytorch/examples, whose weights ``load_official("dcgan", …)`` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gans.adversarial import AdversarialGAN
from gans.networks import NetworkOptions, images_only, label_count, networks
from gans.options import one_of
from losses import AdversarialLoss, Penalty
from nets.discriminator import CONDITIONINGS


@dataclass
class DCGANOptions(NetworkOptions):
    """conditioning: none, or how D takes the labels that G has beside z: concat (a class vector as further input channels) or
    projection (features times class vector, arXiv:1802.05637)."""

    name: str = "dcgan"
    conditioning: str = "none"


class DCGAN(AdversarialGAN):
    """The paper's networks, or others by option, for ``spec`` under any loss and penalty."""

    Options = DCGANOptions
    shares_fake = True

    def __init__(self, options: DCGANOptions, spec: Any, loss: AdversarialLoss, penalty: Penalty):
        images_only(options.name, spec)
        one_of("gan.conditioning", options.conditioning, CONDITIONINGS)
        classes = label_count(options.name, spec, options.conditioning)
        generator, discriminator = networks(options, spec, classes, options.conditioning)
        super().__init__(generator, discriminator, loss, penalty, options, options.z_dim, bool(classes))
