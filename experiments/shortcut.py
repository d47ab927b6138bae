"""The gated shortcut (arXiv:2201.11351) against the identity: does a generator's gate help?

    python -m experiments.shortcut                  4 kinds x 3 seeds
    python -m experiments.shortcut report=true      table and picture from the results kept

gan=dcgan with the residual generator on digits at 16 px, the same images and seeds for every kind; none is the reference without
shortcuts, egs the paper's foil (the gate weighs the input against the feature, without refinement).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from experiments import common, show
from training.sampling import load_gan

SAMPLES = 1797
KINDS = ("none", "identity", "egs", "gated")


def sweeps(options: common.Options) -> list[common.Sweep]:
    """One."""
    return [
        common.Sweep(
            f"gan=dcgan dataset=digits gan.generator=resnet gan.upsample=resize gan.width_g=32 gan.shortcut={','.join(KINDS)} "
            "total_kimg=24 eval.samples=1797 eval.metric=fid eval.every_kimg=4 sample.every_kimg=0"
        )
    ]


def measured(run: common.Run) -> dict[str, Any]:
    """Frechet distance, precision and recall at the end; the distance over training."""
    generator = load_gan(str(run.folder), torch.device("cpu")).gan.generator
    values = common.scores(run, "fid,pr", SAMPLES)
    values["generator_parameters"] = sum(p.numel() for p in generator.parameters())
    return {**values, "frechet_over_kimg": common.curve(run, "frechet_digits")}


def table(runs: list[dict[str, Any]]) -> str:
    """A row a kind."""
    rows = []
    for (kind,), seeds in show.groups(runs, "gan.shortcut").items():
        row = [f"`shortcut={kind}`", show.spread(show.numbers(seeds, "frechet"), ".1f")]
        row += [show.spread(show.numbers(seeds, name), ".2f") for name in ("precision", "recall")]
        best = [min(value for _, value in run["values"]["frechet_over_kimg"]) for run in seeds]
        rows.append([*row, show.spread(best, ".1f"), f"{show.numbers(seeds, 'generator_parameters')[0]:,}"])
    return show.markdown(("", "Frechet distance (digits)", "precision", "recall", "best of training", "parameters of G"), rows)


def draw(runs: list[dict[str, Any]], options: common.Options, folder: Path) -> list[Path]:
    """docs/shortcut.png: a dot a seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.6), dpi=110, facecolor="white", layout="constrained")
    ax = figure.subplots()
    found = {kind: show.numbers(seeds, "frechet") for (kind,), seeds in show.groups(runs, "gan.shortcut").items()}
    show.dots(ax, found)
    show.plain_axes(ax, "shortcut of G: Frechet distance (digits), lower is better", "a dot a seed, a bar at their mean")
    return [show.save_figure(figure, folder / "shortcut.png")]


def seconds(given: Mapping[str, str]) -> float:
    """For a thousand images, on one thread."""
    return 1.6 if given["gan.shortcut"] == "gated" else 1.2


EXPERIMENT = common.Experiment(
    "shortcut", __doc__, sweeps, ("gan.shortcut", "seed"), measured, table, draw, seconds,
    protocol={
        "networks": "residual generator of width 32, DCGAN's discriminator, 16 px",
        "training": "recipe dcgan-digits, 24 kimg = 750 steps of either network", "samples": SAMPLES, "weights": "EMA",
    },
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(common.main(EXPERIMENT))
