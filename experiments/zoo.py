"""The zoo at one size: every model on digits for the same images, and a picture of each on real pictures of clothes.

    python -m experiments.zoo                                   8 models x 3 seeds on digits
    python -m experiments.zoo path=fashion-mnist.zip            and one longer run of each on Fashion-MNIST at that place
    python -m experiments.zoo report=true                       table and pictures from what is kept

Each model by its recipe <gan>-digits: batch 32, networks of the same order of parameters, the optimizer of gan=<gan>. Images
are those that a run has seen, one batch a step: models with several steps of the discriminator (wgan, wgan_gp) show it more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments import common, show
from training.checkpoint import load
from training.sampling import grid_samples, load_gan, rebuild

SAMPLES, KIMG = 1797, 32
CLOTHES_KIMG = {"vanilla": 64, "dcgan": 64, "lsgan": 64, "wgan": 24, "wgan_gp": 24, "cgan": 48, "acgan": 48, "r3gan": 24}
MODELS = tuple(CLOTHES_KIMG)
ROWS, COLUMNS = 5, 10


@dataclass
class Options(common.Options):
    """path     Fashion-MNIST as train.py's dataset.path takes it; without it there are no runs on it."""

    path: str | None = None


def sweeps(options: Options) -> list[common.Sweep]:
    """One on digits; one a model on clothes."""
    found = [common.Sweep(f"dataset=digits gan={','.join(MODELS)} total_kimg={KIMG} eval.samples=0 sample.every_kimg=0")]
    if options.path is None:
        return found
    place = (f"dataset.path={Path(options.path).expanduser()}",)
    for model, kimg in CLOTHES_KIMG.items():
        words = f"dataset=fashion_mnist gan={model} recipe={model}-digits total_kimg={kimg} seed=0"
        narrow = "precision=bf16 gan.width=32 gan.cardinality=4 penalty.gamma=10 schedule.gamma.final=2 "
        own = {"vanilla": "", "r3gan": narrow}.get(model, "gan.width_g=32 gan.width_d=32 ")
        found.append(common.Sweep(f"{words} {own}eval.samples=0 sample.every_kimg=0 checkpoint.every_kimg=8", place))
    return found


def measured(run: common.Run) -> dict[str, Any]:
    """On digits the numbers of the table; on clothes nothing: its picture is all."""
    gan = load_gan(str(run.folder), torch.device("cpu")).gan
    values = {f"{name}_parameters": sum(p.numel() for p in part.parameters()) for name, part in gan.parameter_sets().items()}
    if run.options["dataset"] != "digits":
        return values
    return {**common.scores(run, "fid,pr,recognised" if gan.conditional else "fid,pr", SAMPLES), **values}


def table(runs: list[dict[str, Any]]) -> str:
    """A row a model, best first."""
    rows = []
    for (model,), seeds in show.groups([run for run in runs if run["dataset"] == "digits"], "gan").items():
        mean = show.numbers(seeds, "frechet")
        row = [f"`{model}`", show.spread(mean, ".1f")]
        row += [show.spread(show.numbers(seeds, name), ".2f") for name in ("precision", "recall")]
        row.append(show.spread([100 * x for x in show.numbers(seeds, "recognised")], ".1f"))
        speed = [1000 * run["kimg"] / run["cpu_seconds"] for run in seeds]
        row.append(f"{sum(speed) / len(speed):,.0f}")
        sizes = [f"{show.numbers(seeds, f'{name}_parameters')[0] / 1e6:.2f}" for name in ("generator", "discriminator")]
        rows.append([*row, " + ".join(sizes)])
    head = ("", "Frechet distance (digits)", "precision", "recall", "% recognised", "images per CPU second", "M parameters")
    return show.markdown(head, rows)


def draw(runs: list[dict[str, Any]], options: Options, folder: Path) -> list[Path]:
    """docs/zoo.png: a dot a seed; docs/zoo-grids.png from the runs on clothes, where these are at hand."""
    from matplotlib.figure import Figure

    files = []
    found = show.groups([run for run in runs if run["dataset"] == "digits"], "gan")
    if found:
        figure = Figure(figsize=(7.0, 3.9), dpi=110, facecolor="white", layout="constrained")
        ax = figure.subplots()
        show.dots(ax, {model: show.numbers(seeds, "frechet") for (model,), seeds in found.items()})
        kimg = next(iter(found.values()))[0]["kimg"]
        title = f"Frechet distance (digits) after {kimg:g} kimg, lower is better"
        show.plain_axes(ax, title, "a dot a seed, a bar at their mean")
        files.append(show.save_figure(figure, folder / "zoo.png"))
    clothes = [run for run in common.plan(EXPERIMENT, options) if run.options["dataset"] != "digits"]
    clothes = [run for run in clothes if "values" in run.record()]
    return [*files, _grids(clothes, folder / "zoo-grids.png")] if clothes else files


def _grids(runs: list[common.Run], path: Path) -> Path:
    """Samples of each model: conditional ones a column a class."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.2, 3.6 * -(-len(runs) // 2)), dpi=100, facecolor="white", layout="constrained")
    axes = figure.subplots(-(-len(runs) // 2), 2, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, run in zip(axes, runs):
        state = load(run.folder / "checkpoints" / "latest.pt")
        gan, config, spec = rebuild(state, torch.device("cpu"), "ema", run.folder.name)
        shape = (COLUMNS, ROWS) if gan.conditional else (ROWS, COLUMNS)
        images, _ = grid_samples(gan, spec, config.seed, *shape, torch.device("cpu"))
        if gan.conditional:  # a row a class: turn it
            images = images.unflatten(0, (COLUMNS, ROWS)).transpose(0, 1).flatten(0, 1)
        tiles = torch.nn.functional.pad(images, (1, 1, 1, 1), value=1.0).unflatten(0, (ROWS, COLUMNS))
        picture = tiles.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
        ax.imshow((picture.expand(*picture.shape[:2], 3) / 2 + 0.5).clamp(0, 1).numpy(), interpolation="nearest")
        labels = ", a column a class" if gan.conditional else ""
        ax.set_title(f"{config.gan.name}, {gan.clock.kimg:g} kimg{labels}", fontsize=12, loc="left", fontweight="bold")
    return show.save_figure(figure, path)


def seconds(given: Mapping[str, str]) -> float:
    """For a thousand images, on one thread."""
    digits = {"vanilla": 0.45, "dcgan": 0.7, "lsgan": 0.7, "cgan": 1.2, "acgan": 1.1, "wgan": 3.2, "wgan_gp": 3.7, "r3gan": 10.6}
    clothes = {"vanilla": 0.7, "dcgan": 1.3, "lsgan": 1.3, "cgan": 3.0, "acgan": 1.7, "wgan": 6.2, "wgan_gp": 6.6, "r3gan": 8.0}
    return (digits if given["dataset"] == "digits" else clothes)[given["gan"]]


EXPERIMENT = common.Experiment(
    "zoo", __doc__, sweeps, ("dataset", "gan", "seed"), measured, table, draw, seconds,
    protocol={
        "training": f"recipe <gan>-digits, batch 32, {KIMG} kimg = {1000 * KIMG // 32} steps of G", "samples": SAMPLES,
        "reference": "all 1,797 digits", "weights": "EMA",
        "recognised": "share of samples of conditional models that the digits classifier takes for their label",
        "images per CPU second": "images seen over CPU seconds of training, pictures and checkpoints included",
    },
    schema=Options,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(common.main(EXPERIMENT))
