"""Mode coverage of images: how many of the 1,000 numbers of three stacked digits does a model draw?

    python -m experiments.stacked                   4 runs, about three minutes of one CPU thread
    python -m experiments.stacked report=true       table and picture from the results kept

{nonsaturating, relativistic} x {none, r1_r2} on dataset=stacked_digits, one seed. The networks are DCGAN's at a small width, with
no BatchNorm in the discriminator, so that penalties mean what they say. Modes are told by the digits classifier, channel by
channel; 10,000 samples of uniformly drawn numbers would miss none of them on average (1,000 exp(-10) = 0.05).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import common, show

SAMPLES = 10_000
EVERYWHERE = (
    "gan=dcgan dataset=stacked_digits gan.norm_d=none gan.width_g=32 gan.width_d=32 batch_size=64 optim.lr=5e-4 total_kimg=64 "
    "ema_half_life=2 schedule.ema_half_life.warmup_kimg=20 log.every_kimg=2 sample.every_kimg=0 checkpoint.every_kimg=8 "
    "eval.metric=modes eval.samples=5000 eval.every_kimg=8"
)


def sweeps(options: common.Options) -> list[common.Sweep]:
    """The first is without penalties, which have no gamma."""
    return [
        common.Sweep(f"{EVERYWHERE} loss=nonsaturating,relativistic penalty=none"),
        common.Sweep(f"{EVERYWHERE} loss=nonsaturating,relativistic penalty=r1_r2 penalty.gamma=1"),
    ]


def measured(run: common.Run) -> dict[str, Any]:
    """Coverage at the end, and over training."""
    values = common.scores(run, "modes", SAMPLES)
    return {**values, "modes_over_kimg": common.curve(run, "modes"), "kl_over_kimg": common.curve(run, "kl")}


def table(runs: list[dict[str, Any]]) -> str:
    """A row a run."""
    rows = []
    for (loss, penalty), seeds in show.groups(runs, "loss", "penalty").items():
        modes, kl = show.numbers(seeds, "modes_covered"), show.numbers(seeds, "kl")
        rows.append([loss, penalty, show.spread(modes, ".0f"), show.spread(kl, ".3f"), f"{seeds[0]['kimg']:g}"])
    return show.markdown(("loss", "penalty", "modes of 1,000", "KL to uniform", "kimg"), rows, words=2)


def draw(runs: list[dict[str, Any]], options: common.Options, folder: Path) -> list[Path]:
    """docs/stacked.png: modes and KL over training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.6), dpi=110, facecolor="white", layout="constrained")
    axes = figure.subplots(1, 2)
    colors = {"nonsaturating": "#2b6cb0", "relativistic": "#d9622b"}
    for run in runs:
        label = f"{run['loss']}, {run['penalty']}"
        style = {"color": colors[run["loss"]], "ls": "-" if run["penalty"] == "r1_r2" else "--", "marker": "o", "ms": 3.5}
        for ax, name in zip(axes, ("modes_over_kimg", "kl_over_kimg")):
            if run["values"].get(name):
                ax.plot(*zip(*run["values"][name]), label=label, **style)
    show.plain_axes(axes[0], "modes of 1,000 in 5,000 samples", "kimg")
    axes[0].set_ylim(0, 1040)
    axes[0].axhline(993, color="#4a5568", lw=1, ls=":", label="uniform numbers")
    show.plain_axes(axes[1], "KL to uniform (nats)", "kimg")
    axes[1].set_ylim(0, 7.2)  # log 1,000 = 6.9: one mode only
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8.5, frameon=False)
    return [show.save_figure(figure, folder / "stacked.png")]


def seconds(given: Mapping[str, str]) -> float:
    """For a thousand images, on one thread."""
    return 0.5


EXPERIMENT = common.Experiment(
    "stacked", __doc__, sweeps, ("loss", "penalty", "seed"), measured, table, draw, seconds,
    protocol={
        "networks": "DCGAN's for 16 px, width 32, BatchNorm in G only",
        "training": "batch 64, 64 kimg = 1,000 steps of either network, Adam with lr 5e-4",
        "gamma": 1, "samples": SAMPLES, "weights": "EMA", "modes": "by the digits classifier, a digit a channel",
    },
    seeds=(0,),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(common.main(EXPERIMENT))
