"""Walks through latent space: strips and animations between seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from data import Spec
from gans.base import GAN
from training.draws import latents
from training.pictures import grid, save_grid
from training.sampling import class_titles, generate, grid_labels

MILLISECONDS = 60  # that a frame of an animation stays
ANIMATIONS = {".gif": "GIF", ".webp": "WEBP"}


def slerp(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """Spherical interpolation (arXiv:1609.04468) from ``a`` to ``b``, both (n, d), at shares ``t`` (n,) in [0, 1].

    Turns at an even angle and, unlike a straight line, does not cut through the middle, where Gaussian latents never are.
    """
    t = t.unsqueeze(1)
    cosine = (torch.nn.functional.normalize(a, dim=1) * torch.nn.functional.normalize(b, dim=1)).sum(dim=1, keepdim=True)
    angle = cosine.clamp(-1, 1).acos()
    turned = (((1 - t) * angle).sin() * a + (t * angle).sin() * b) / angle.sin()
    return torch.where(angle.sin() < 1e-4, torch.lerp(a, b, t), turned)  # same or opposite directions: no plane to turn in


def path_latents(seeds: Sequence[int], frames: int, row: int, z_dim: int, closed: bool) -> Tensor:
    """Latents of sample ``row`` under each of ``seeds`` and ``frames`` steps from each to the next: (k * frames + 1, z_dim) for
    k legs; ``closed`` goes back to the first seed and leaves out the end, which is the beginning: (k * frames, z_dim)."""
    stops = torch.cat([latents(seed, row, 1, z_dim) for seed in (*seeds, *(seeds[:1] if closed else ()))])
    shares = torch.arange(frames) / frames
    legs = [slerp(a.expand(frames, -1), b.expand(frames, -1), shares) for a, b in zip(stops, stops[1:])]
    return torch.cat([*legs, *([] if closed else [stops[-1:]])])


def interpolation(
    gan: GAN, spec: Spec, seeds: Sequence[int], frames: int, labels: Sequence[int], rows: int, closed: bool, device: torch.device,
    batch_size: int,
) -> tuple[Tensor, list[str] | None]:
    """(images (rows, frames in all, channels, height, width), row titles): a row a class of conditional models (``labels``, or
    at most ``rows`` of all), otherwise one row."""
    chosen = grid_labels(spec.classes, rows, 1, labels)[1] if gan.conditional else [None]
    found = []
    for row, label in enumerate(chosen):
        z = path_latents(seeds, frames, row, gan.z_dim, closed)
        classes = None if label is None else torch.full((len(z),), label)
        found.append(torch.cat(list(generate(gan, z, classes, device, batch_size))))
    return torch.stack(found), class_titles(spec, chosen) if gan.conditional else None


def save_strip(path: Path, images: Tensor, titles: list[str] | None) -> Path:
    """``images`` (rows, frames, …) as one PNG, a line a row."""
    return save_grid(path, images.flatten(0, 1), images.shape[1], row_titles=titles)


def save_animation(path: Path, images: Tensor) -> Path:
    """``images`` (rows, frames, …) as a GIF or WebP that repeats for ever, all rows at once, two lines where there are many."""
    columns = -(-len(images) // (1 if len(images) <= 5 else 2))
    pictures = [grid(frame, columns, min_width=256) for frame in images.transpose(0, 1)]
    if path.suffix == ".gif":  # one palette: frames with their own would flicker
        palette = _stack(pictures).quantize(256)
        pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.tmp")
    pictures[0].save(
        part, format=ANIMATIONS[path.suffix], save_all=True, append_images=pictures[1:], duration=MILLISECONDS, loop=0,
        **({"quality": 90} if path.suffix == ".webp" else {}),
    )  # fmt: skip
    os.replace(part, path)
    return path


def _stack(pictures: Sequence[Image.Image]) -> Image.Image:
    """Some of the pictures below each other, to find the colours of all."""
    some = pictures[:: max(1, len(pictures) // 16)]
    tall = Image.new("RGB", (some[0].width, some[0].height * len(some)))
    for i, picture in enumerate(some):
        tall.paste(picture, (0, i * picture.height))
    return tall
