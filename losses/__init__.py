"""Losses and penalties as functions of logits, images and callables; built from options by name."""

from losses.adversarial import LOSSES, AdversarialLoss, build_loss
from losses.penalties import PENALTIES, Penalty, PenaltyPoint, build_penalty, squared_gradient_norm

__all__ = [
    "LOSSES",
    "PENALTIES",
    "AdversarialLoss",
    "Penalty",
    "PenaltyPoint",
    "build_loss",
    "build_penalty",
    "squared_gradient_norm",
]
