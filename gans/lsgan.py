"""LSGAN: Mao, Li, Xie, Lau, Wang, Smolley. Least squares generative adversarial networks (arXiv:1611.04076).

Objective:
    D:  1/2 E[(D(x) - b)^2] + 1/2 E[(D(G(z)) - a)^2]        (loss=lsgan: loss.a, loss.b, loss.c)
    G:  1/2 E[(D(G(z)) - c)^2]

DCGAN's networks with another loss, and nothing more: fakes that lie on the right side of the boundary but far from the data
are still pulled in. Targets a, b, c = 0, 1, 1, or -1, 1, 0, with which the optimum minimises a Pearson chi-squared divergence.
"""

from __future__ import annotations

from dataclasses import dataclass

from gans.dcgan import DCGAN, DCGANOptions


@dataclass
class LSGANOptions(DCGANOptions):
    """As DCGAN's."""

    name: str = "lsgan"


class LSGAN(DCGAN):
    """DCGAN's networks; the loss comes with the configuration."""

    Options = LSGANOptions
