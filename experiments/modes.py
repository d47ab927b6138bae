"""Mode coverage on points of the plane: which losses and penalties find all modes, and how evenly?

    python -m experiments.modes                                 108 runs, half an hour of one CPU thread
    python -m experiments.modes only=ring seeds=0               a part of them
    python -m experiments.modes report=true                     table and pictures from the results kept

{nonsaturating, lsgan, relativistic} x {none, r1, r1_r2} and wasserstein x {wgan_gp, r1, r1_r2} on 8 and 25 Gaussians and the
swiss roll, two small perceptrons (recipes vanilla-ring, vanilla-grid, vanilla-swiss_roll), three seeds. A Wasserstein critic
without a penalty has an unbounded slope and no optimum: it would be no baseline, so it is given the penalty of WGAN-GP.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from data.points import geometry
from experiments import common, show
from training.evaluation import Samples
from training.sampling import load_gan

SAMPLES, SHOWN = 2500, 1000
GAMMA = 0.02
SETS = ("ring", "grid", "swiss_roll")
LOSSES = ("nonsaturating", "lsgan", "relativistic", "wasserstein")
PENALTIES = ("none", "r1", "r1_r2")
EVERYWHERE = f"gan=vanilla dataset={','.join(SETS)} total_kimg=400 eval.samples=0 sample.every_kimg=0 log.every_kimg=8"


def sweeps(options: common.Options) -> list[common.Sweep]:
    """The first is without penalties, which have no gamma."""
    return [
        common.Sweep(f"{EVERYWHERE} loss=nonsaturating,lsgan,relativistic penalty=none"),
        common.Sweep(f"{EVERYWHERE} loss={','.join(LOSSES)} penalty=r1,r1_r2 penalty.gamma={GAMMA}"),
        common.Sweep(f"{EVERYWHERE} loss=wasserstein penalty=wgan_gp penalty.gp_lambda=0.1"),
    ]


def measured(run: common.Run) -> dict[str, Any]:
    """Coverage, and for the first seed some samples in thousandths: x, y, x, y, …"""
    values = common.scores(run, "modes", SAMPLES)
    if run.options["seed"] == "0":
        device = torch.device("cpu")
        points = Samples(load_gan(str(run.folder), device).gan, None, 0, device, "points")(0, SHOWN)
        values["points"] = (1000 * points.flatten()).round().clamp(-9999, 9999).int().tolist()
    return values


def table(runs: list[dict[str, Any]]) -> str:
    """A row for each set, loss and penalty."""
    rows = []
    for (name, loss, penalty), seeds in _sorted(show.groups(runs, "dataset", "loss", "penalty")).items():
        modes = geometry(name).modes
        row = [name, loss, penalty, f"{show.spread(show.numbers(seeds, 'modes_covered'), '.1f')} of {modes}"]
        row.append(show.spread([100 * x for x in show.numbers(seeds, "high_quality")], ".1f"))
        row.append(show.spread(show.numbers(seeds, "kl"), ".3f"))
        diverged = sum(run["values"].get("diverged", False) for run in seeds)
        rows.append([*row, f"{len(seeds)}" + (f" ({diverged} diverged)" if diverged else "")])
    head = ("data", "loss", "penalty", "modes covered", "% within 3 sigma", "KL to uniform", "seeds")
    return show.markdown(head, rows, words=3)


def _sorted(found: Mapping[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    penalties = (*PENALTIES[:1], "wgan_gp", *PENALTIES[1:])
    return dict(sorted(found.items(), key=lambda item: (
        SETS.index(item[0][0]), LOSSES.index(item[0][1]), penalties.index(item[0][2])
    )))  # fmt: skip


def draw(runs: list[dict[str, Any]], options: common.Options, folder: Path) -> list[Path]:
    """docs/modes-<set>.png of every set: rows are losses, columns penalties, samples of the first seed over real points."""
    return [path for name in SETS if (path := _scatters(runs, name, folder / f"modes-{name}.png"))]


def _scatters(runs: list[dict[str, Any]], name: str, path: Path) -> Path | None:
    from matplotlib.figure import Figure

    found = {(run["loss"], run["penalty"]): run["values"] for run in runs if run["dataset"] == name and "points" in run["values"]}
    if not found:
        return None
    real = geometry(name).draw(2000, torch.Generator().manual_seed(1)).numpy()
    modes = geometry(name).modes
    figure = Figure(figsize=(8.4, 11.6), dpi=100, facecolor="white", layout="constrained")
    for row, loss in enumerate(LOSSES):
        for column, penalty in enumerate(PENALTIES):
            ax = figure.add_subplot(len(LOSSES), len(PENALTIES), row * len(PENALTIES) + column + 1, aspect="equal")
            if loss == "wasserstein" and penalty == "none":
                penalty = "wgan_gp"
            values = found.get((loss, penalty))
            ax.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), xticks=[], yticks=[])
            ax.spines[:].set_color("#cbd5e0")
            ax.set_title(f"{loss}, {penalty}", fontsize=10, loc="left", fontweight="bold", color="#1a202c")
            ax.scatter(*real.T, s=7, color="#cbd5e0", linewidths=0)
            if values is None:
                ax.set_xlabel("not run", fontsize=9, color="#4a5568")
                continue
            x, y = ([value / 1000 for value in values["points"][first::2]] for first in (0, 1))
            ax.scatter(x, y, s=3.2, color="#2b6cb0", linewidths=0)
            found_out = f"{values['modes_covered']:.0f} of {modes} modes, {values['high_quality']:.0%} within 3 sigma"
            ax.set_xlabel(found_out, fontsize=9, color="#4a5568")
    figure.suptitle(f"{name}: {SHOWN:,} samples (blue) over real points (gray), seed 0", fontsize=11, x=0.01, ha="left")
    return show.save_figure(figure, path)


def seconds(given: Mapping[str, str]) -> float:
    """For a thousand points, on one thread."""
    return 0.03 if given["penalty"] == "r1_r2" else 0.026


EXPERIMENT = common.Experiment(
    "modes", __doc__, sweeps, ("dataset", "loss", "penalty", "seed"), measured, table, draw, seconds,
    protocol={
        "networks": "two perceptrons of three hidden layers of 128, latents of two numbers (recipe vanilla-<set>)",
        "training": "batch 256, 400 kimg = 1,563 steps of either network, Adam, lr falling linearly to 0",
        "gamma": GAMMA, "gp_lambda": 0.1, "samples": SAMPLES, "weights": "EMA",
        "modes_covered": "modes with at least one sample within 3 sigma",
        "high_quality": "share of samples within 3 sigma of any mode",
        "kl": "of those samples' modes to the uniform distribution, nats",
        "wasserstein": "never without a penalty: an unbounded critic is no baseline; one critic step for each of G's like every "
        "other loss, where its papers take five",
    },
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(common.main(EXPERIMENT))
