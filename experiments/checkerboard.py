"""Checkerboards: how much energy do generated images have at the frequency of the last stride, by kind of upsampling?

    python -m experiments.checkerboard                  4 kinds x 3 seeds
    python -m experiments.checkerboard report=true      table and picture from the results kept

A layer that doubles the size treats even and odd rows by different weights; what it does differently shows as energy with a
period of two pixels. Measured: of the mean power spectrum of images (2-D discrete Fourier transform, constant term left out), the
share at frequencies within one bin (1/32 cycles a pixel) of 1/2 in x or in y. gan=dcgan on digits at 32 px (enlarged from 8 px,
so that real images have next to nothing there); samples of the EMA weights in floating point, at the start and over training.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import data
from data import DatasetOptions, to_float
from experiments import common, show
from training.checkpoint import numbered
from training.draws import latents
from training.sampling import generate, load_gan

SAMPLES, RESOLUTION = 500, 32
KINDS = ("transposed", "pixel_shuffle", "resize", "fir")
COLORS = {"transposed": "#d9622b", "pixel_shuffle": "#6b46c1", "resize": "#2b6cb0", "fir": "#2f855a"}


def sweeps(options: common.Options) -> list[common.Sweep]:
    """One."""
    return [
        common.Sweep(
            f"gan=dcgan gan.upsample={','.join(KINDS)} gan.width_g=32 gan.width_d=32 dataset=digits "
            f"dataset.resolution={RESOLUTION} total_kimg=20 checkpoint.every_kimg=2 checkpoint.keep=100 eval.samples=0 "
            "sample.every_kimg=0"
        )
    ]


def spectrum(images: Tensor) -> Tensor:
    """Mean power (r, r // 2 + 1) of images (n, c, r, r) at the frequencies of ``torch.fft.rfft2``, without the constant term."""
    power = torch.fft.rfft2(images.double()).abs().square().mean((0, 1))
    power[0, 0] = 0
    weight = torch.full((power.shape[1],), 2.0, dtype=power.dtype)  # each of these stands for its mirror image, too
    weight[0] = 1.0
    if images.shape[-1] % 2 == 0:
        weight[-1] = 1.0
    return power * weight


def stride_share(images: Tensor) -> float:
    """Share in [0, 1] of the energy of images (n, c, r, r) that lies within one bin of 1/2 cycles a pixel in x or y."""
    power = spectrum(images)
    r = images.shape[-1]
    down, across = torch.fft.fftfreq(r).abs(), torch.fft.rfftfreq(r)
    high = 0.5 - 1.5 / r
    band = (down.view(-1, 1) > high) | (across.view(1, -1) > high)
    return float(power[band].sum() / power.sum())


def profile(images: Tensor) -> list[float]:
    """Energy by horizontal frequency 0, 1/r, … 1/2, as shares of the whole."""
    power = spectrum(images)
    return (power.sum(0) / power.sum()).tolist()


def measured(run: common.Run) -> dict[str, Any]:
    """The share at every checkpoint, the spectrum at the first and the last one, and those of real images."""
    shares, profiles, device = [], [], torch.device("cpu")
    for file in numbered(run.folder / "checkpoints"):
        loaded = load_gan(str(file), device)
        images = torch.cat(list(generate(loaded.gan, latents(0, 0, SAMPLES, loaded.gan.z_dim), None, device)))
        shares.append([loaded.clock.kimg, stride_share(images)])
        profiles.append(profile(images))
    real = to_float(data.build(DatasetOptions("digits", resolution=RESOLUTION)).images)
    return {
        "share_at_start": shares[0][1], "share_at_end": shares[-1][1], "share_of_real_images": stride_share(real),
        "frechet": common.scores(run, "fid", 1797)["frechet"], "share_over_kimg": shares,
        "profile_at_start": profiles[0], "profile_at_end": profiles[-1], "profile_of_real_images": profile(real),
    }  # fmt: skip


def table(runs: list[dict[str, Any]]) -> str:
    """A row a kind of upsampling, and one of real images."""
    rows = []
    for (kind,), seeds in show.groups(runs, "gan.upsample").items():
        shares = [[100 * x for x in show.numbers(seeds, f"share_at_{when}")] for when in ("start", "end")]
        rows.append([f"`upsample={kind}`", *(show.spread(share, ".3f") for share in shares),
                     show.spread(show.numbers(seeds, "frechet"), ".1f")])  # fmt: skip
    rows.append(["real images", "", show.spread([100 * show.numbers(runs, "share_of_real_images")[0]], ".3f"), ""])
    return show.markdown(("", "% of energy at the start", "% after training", "Frechet distance (digits)"), rows)


def draw(runs: list[dict[str, Any]], options: common.Options, folder: Path) -> list[Path]:
    """docs/checkerboard.png: the share over training, and energy by horizontal frequency after it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 4.0), dpi=110, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for (kind,), seeds in show.groups(runs, "gan.upsample").items():
        curves = [run["values"]["share_over_kimg"] for run in seeds if "share_over_kimg" in run["values"]]
        if not curves:
            continue
        kimg = [point[0] for point in curves[0]]
        shares = [[curve[i][1] for curve in curves] for i in range(len(kimg))]
        left.plot(kimg, [statistics.fmean(s) for s in shares], color=COLORS[kind], marker="o", ms=3.5, lw=1.6, label=kind)
        left.fill_between(kimg, [min(s) for s in shares], [max(s) for s in shares], color=COLORS[kind], alpha=0.15, lw=0)
        for when, style in (("start", ":"), ("end", "-")):
            rows = [run["values"][f"profile_at_{when}"] for run in seeds if f"profile_at_{when}" in run["values"]]
            mean = [statistics.fmean(column) for column in zip(*rows)]
            right.plot(_frequencies(mean), mean, color=COLORS[kind], ls=style, lw=1.6)
    real = next(run["values"] for run in runs if "share_of_real_images" in run["values"])
    left.axhline(real["share_of_real_images"], color="#4a5568", ls="--", lw=1.2, label="real images")
    right.plot(_frequencies(real["profile_of_real_images"]), real["profile_of_real_images"], color="#4a5568", ls="--", lw=1.2)
    for ax in (left, right):
        ax.set_yscale("log")
    show.plain_axes(left, "share of energy at the stride frequency", "kimg (line: mean, band: range of the seeds)")
    show.plain_axes(right, "energy by horizontal frequency", "cycles a pixel (dotted: at the start, solid: after training)")
    left.legend(fontsize=8.5, frameon=False, ncols=2)
    return [show.save_figure(figure, folder / "checkerboard.png")]


def _frequencies(profile: list[float]) -> list[float]:
    return [i / 2 / (len(profile) - 1) for i in range(len(profile))]


def seconds(given: Mapping[str, str]) -> float:
    """For a thousand images, on one thread."""
    return 1.3


EXPERIMENT = common.Experiment(
    "checkerboard", __doc__, sweeps, ("gan.upsample", "seed"), measured, table, draw, seconds,
    protocol={
        "networks": "DCGAN's for 32 px, width 32", "training": "recipe dcgan-digits, 20 kimg = 625 steps of either network",
        "samples": SAMPLES, "weights": "EMA", "pixels": "floating point, not rounded",
        "share": "energy within 1/32 cycles a pixel of 1/2 in x or y, over all but the constant term",
    },
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(common.main(EXPERIMENT))
