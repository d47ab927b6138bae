"""Images from a GAN: fixed latents, labels for grids, and a model rebuilt from its checkpoint alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gans
from data import Spec
from errors import UserError
from gans.base import GAN, Clock
from training.checkpoint import find, load
from training.config import Config, build_config
from training.draws import latents
from training.forms import form_of


@torch.no_grad()
def generate(gan: GAN, z: Tensor, labels: Tensor | None, device: torch.device, batch_size: int = 64) -> Iterator[Tensor]:
    """Images in [-1, 1] on the CPU, batch by batch, from latents (n, z_dim); networks in evaluation mode, flags restored."""
    networks = [getattr(gan, name) for name in gan.ema_modules]
    flags = [(module, module.training) for network in networks for module in network.modules()]
    for network in networks:
        network.eval()
    try:
        for first in range(0, len(z), batch_size):
            part = slice(first, first + batch_size)
            images = gan.sample(z[part].to(device), None if labels is None else labels[part].to(device))
            yield images.float().cpu().contiguous()
    finally:
        for module, flag in flags:
            module.training = flag


def grid_labels(classes: int, rows: int, columns: int, wanted: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
    """(labels of a grid row by row, the class of each row): a row a class, spread evenly when there are more classes."""
    chosen = list(wanted) if wanted else torch.linspace(0, classes - 1, min(classes, rows)).round().int().tolist()
    return torch.tensor(chosen).repeat_interleave(columns), chosen


def sample_labels(classes: int, first: int, n: int, wanted: Sequence[int] | None = None) -> Tensor:
    """Labels (n,) of the samples ``first`` …: the wanted classes (default: all) in turn, so that each gets its share."""
    chosen = torch.tensor(list(wanted) if wanted else list(range(classes)))
    return chosen[torch.arange(first, first + n) % len(chosen)]


def grid_samples(
    gan: GAN, spec: Spec, seed: int, rows: int, columns: int, device: torch.device
) -> tuple[Tensor, list[str] | None]:
    """(images, row titles) of the run's fixed latents, as many as a picture of them shows: for images rows * columns, of
    conditional models a row a class."""
    n, labels, titles = form_of(spec).count(rows, columns), None, None
    if gan.conditional:
        labels, chosen = grid_labels(spec.classes, rows, columns)
        n, titles = len(labels), class_titles(spec, chosen)
    z = latents(seed, 0, n, gan.z_dim)
    return torch.cat(list(generate(gan, z, labels, device))), titles


def class_titles(spec: Spec, chosen: Sequence[int]) -> list[str]:
    """Names of classes for people, their numbers if the data has no names."""
    return [spec.class_names[c] if c < len(spec.class_names) else str(c) for c in chosen]


@dataclass
class Loaded:
    """A model rebuilt from a checkpoint."""

    gan: GAN
    config: Config
    spec: Spec
    clock: Clock
    path: Path


def load_gan(where: str, device: torch.device, weights: str = "ema") -> Loaded:
    """Rebuild the GAN of a checkpoint file or run folder, with its EMA (``weights="ema"``) or raw weights, for sampling."""
    path = find(where)
    gan, config, spec = rebuild(load(path), device, weights, str(path))
    return Loaded(gan, config, spec, gan.clock, path)


def rebuild(state: dict[str, Any], device: torch.device, weights: str, name: str) -> tuple[GAN, Config, Spec]:
    """(GAN on ``device`` in evaluation mode, Config, Spec) from a checkpoint's content."""
    try:
        config, _ = build_config(state["config"])
        spec = Spec(**{**state["spec"], "class_names": tuple(state["spec"]["class_names"])})
        gan = gans.build(config.gan, spec, config.loss, config.penalty)
        gan.load_state_dict(state["gan"])
        if weights == "ema":
            for network in gan.ema_modules:
                getattr(gan, network).load_state_dict(state["ema"][network])
        values = {quantity: value for quantity, value in gan.schedules().items() if not callable(value)}
        gan.set_progress(Clock(**state["clock"]), {**values, **state.get("values", {})})
    except (UserError, KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{name}: does not fit this version of the code ({' '.join(str(error).split())[:200]})") from error
    return gan.to(device).eval().requires_grad_(False), config, spec
