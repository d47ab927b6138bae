"""WGAN-GP: Gulrajani, Ahmed, Arjovsky, Dumoulin, Courville. Improved training of Wasserstein GANs (arXiv:1704.00028).

Objective, x_hat = e x + (1 - e) G(z), e ~ U[0, 1) for each pair:
    D:  E[D(G(z))] - E[D(x)] + 10 E[(||grad D(x_hat)|| - 1)^2]          (loss=wasserstein penalty=wgan_gp)
    G:  -E[D(G(z))]

Against WGAN: a penalty on the critic's slope in place of clipped weights, so no BatchNorm in the critic (it couples the images
whose gradients are punished; LayerNorm here), 5 critic updates throughout, Adam with lr 1e-4 and betas (0, 0.9). The networks
are DCGAN's; gan.generator=resnet gan.discriminator=resnet are the paper's for 32 px, and ``recipe=wgan_gp-cifar10`` is its recipe
for them: width 128, no norm in the critic, lr 2e-4 falling linearly to 0, G's batch doubled.
"""

from __future__ import annotations

from dataclasses import dataclass

from gans.dcgan import DCGAN, DCGANOptions


@dataclass
class WGANGPOptions(DCGANOptions):
    """As DCGAN's."""

    name: str = "wgan_gp"
    discriminator_steps: int = 5
    norm_d: str = "layer"


class WGANGP(DCGAN):
    """DCGAN's or residual networks, each phase and repeat on its own reals and fakes."""

    Options = WGANGPOptions
    shares_fake = False
