"""Losses and penalties as functions of logits, features, images and callables; built from options by name."""

from losses.adversarial import FORMS, LOSSES, AdversarialLoss, build_loss, per_patch
from losses.classification import auxiliary_cross_entropy
from losses.clipping import clip_weights_
from losses.features import feature_matching
from losses.penalties import PENALTIES, Penalty, PenaltyPoint, build_penalty, squared_gradient_norm

__all__ = [
    "FORMS",
    "LOSSES",
    "PENALTIES",
    "AdversarialLoss",
    "Penalty",
    "PenaltyPoint",
    "auxiliary_cross_entropy",
    "build_loss",
    "build_penalty",
    "clip_weights_",
    "feature_matching",
    "per_patch",
    "squared_gradient_norm",
]
