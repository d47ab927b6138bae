"""What the driver measures during training, by data set; higher is better, the best checkpoint is kept by it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from data import Spec
from gans.base import GAN
from metrics.digits import digits_classifier, recognised
from training.draws import latents
from training.sampling import generate, sample_labels

EVAL_SEED = 7919  # samples for numbers, apart from those of the grids


def draw_samples(gan: GAN, spec: Spec, seed: int, n: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """(images (n, …) in [-1, 1] on the CPU, labels (n,) or None), classes in equal shares."""
    labels = sample_labels(spec.classes, 0, n) if gan.conditional else None
    return torch.cat(list(generate(gan, latents(seed, 0, n, gan.z_dim), labels, device))), labels


def recognised_digits(gan: GAN, spec: Spec, seed: int, n: int, device: torch.device) -> dict[str, float]:
    """The share of n class-conditional samples that the digits classifier takes for their label."""
    images, labels = draw_samples(gan, spec, seed + EVAL_SEED, n, device)
    return {"recognised": recognised(digits_classifier(), images, labels)}


def evaluator(gan: GAN, spec: Spec) -> Callable[[GAN, Spec, int, int, torch.device], dict[str, float]] | None:
    """The measure that suits this model on this data, or None."""
    return recognised_digits if spec.name == "digits" and gan.conditional else None
