"""cGAN: Mirza, Osindero. Conditional generative adversarial nets (arXiv:1411.1784).

Objective, y the label of x:
    D:  -E[log s(D(x, y))] - E[log(1 - s(D(G(z, y), y)))]
    G:  -E[log s(D(G(z, y), y))]

DCGAN's networks (arXiv:1511.06434) that are told the label: G has a learnt vector of the class joined to z; D has it as further
input channels (gan.conditioning=concat, the paper's way), or adds to its logit the inner product of its features with the
class's vector (projection: Miyato, Koyama, arXiv:1802.05637).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from errors import UserError
from gans.dcgan import DCGAN, DCGANOptions
from gans.options import one_of
from losses import AdversarialLoss, Penalty


@dataclass
class CGANOptions(DCGANOptions):
    """As DCGAN's; conditioning: concat or projection."""

    name: str = "cgan"
    conditioning: str = "concat"


class CGAN(DCGAN):
    """DCGAN with labels, always."""

    Options = CGANOptions

    def __init__(self, options: CGANOptions, spec: Any, loss: AdversarialLoss, penalty: Penalty):
        if options.conditioning == "none":
            raise UserError("gan.conditioning=none: gan=cgan is told the labels; allowed: concat, projection; or use gan=dcgan")
        one_of("gan.conditioning", options.conditioning, ("concat", "projection"))
        super().__init__(options, spec, loss, penalty)
