"""One picture of a run's log: the curves a person looks at first."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PENALTY = re.compile(r"(^|_)(r1|r2|gp|penalty|path_length|pl|drift|lecam|consistency)(_|$)")
UNIT_INTERVAL = ("precision", "recall", "density", "coverage", "accuracy", "high_quality")  # metrics that share a panel
BINS = 300  # longer curves are drawn as the mean of as many stretches over a band from their least to greatest value
COLORS = ("#2b6cb0", "#d9622b", "#2f855a", "#b83280", "#6b46c1", "#b7791f", "#0e8a96", "#822727", "#4a5568", "#9f7aea")


@dataclass
class _Panel:
    title: str
    series: dict[str, np.ndarray] = field(default_factory=dict)  # legend -> y, one value a log line, NaN where it has none
    unit: str = ""
    log: bool = False
    share: bool = False  # y runs over [0, 1]
    noisy: bool = False  # rare spikes may leave the panel
    points: bool = False  # rare events: marks where y > 0, no curve


def plot_losses(log_lines: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Draw the log as one PNG of panels over kimg; it appears under ``path`` only when it is whole.

    Loss terms of each phase; logits; shares (D(real) > D(fake) in pairs, D(real) > 0); penalties; gradient norms; skipped
    updates; scheduled values that change; metrics; speed. Scheduled values that stay the same are listed in the title
    line, panels without data are left out. Values that are missing, null, NaN or no numbers leave gaps; an empty log
    gives a picture that says so. matplotlib is imported here, and its pyplot state and backend are not touched.

    log_lines  as written by the trainer: "images_seen" or "kimg", "<phase>/<name>", "value/<name>", "eval/<metric>".
    """
    from matplotlib.figure import Figure

    lines = [line for line in log_lines if isinstance(line, Mapping)]
    kimg = np.array([_kimg(line) for line in lines])
    lines = [line for line, x in zip(lines, kimg, strict=True) if math.isfinite(x)]
    kimg = kimg[np.isfinite(kimg)]
    panels, constants = _panels(lines)

    columns = min(3, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(5.0 * columns + 0.4, 3.2 * rows + 0.5), dpi=110, facecolor="white", layout="constrained")
    if not panels:
        figure.text(0.5, 0.5, "nothing logged yet", ha="center", va="center", fontsize=13, color="#4a5568")
    else:
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, ax in zip(panels, axes[: len(panels)], strict=True):
            _draw(ax, panel, kimg)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        if constants:
            text = "constant:  " + "   ".join(f"{name} {value:.4g}" for name, value in constants.items())
            figure.suptitle(text, x=0.01, ha="left", fontsize=9, color="#4a5568", wrap=True)

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.tmp")
    figure.savefig(part, format="png")
    os.replace(part, path)
    return path


# What is shown -------------------------------------------------------------------------------------------------------


def _panels(lines: list[Mapping[str, Any]]) -> tuple[list[_Panel], dict[str, float]]:
    """The panels in the order a reader wants them, and the scheduled values that never change."""
    curves = _curves(lines)
    losses: dict[str, _Panel] = {}
    logits, shares = _Panel("Logits", noisy=True), _Panel("Shares", share=True)
    penalties, norms = _Panel("Penalties", noisy=True), _Panel("Gradient norms", log=True)
    skipped = _Panel("Skipped updates", unit="share of updates", points=True)
    rates, speed = _Panel("Learning rate", log=True), _Panel("Speed", unit="images/s", noisy=True)
    values: list[_Panel] = []
    metrics, unit_metrics = [], _Panel("Metrics in [0, 1]", share=True)
    constants: dict[str, float] = {}

    phases_with_logits = sum(key.endswith("/logits_real") for key in curves)
    for key, y in curves.items():
        group, _, name = key.partition("/")
        if not name:
            if key == "images_per_sec":
                speed.series["Speed"] = y
        elif group == "value":
            finite = y[np.isfinite(y)]
            if np.ptp(finite) == 0:
                constants[name] = float(finite[0])
            elif re.match(r"lr($|[._/])", name):
                rates.series[name] = y
            else:
                values.append(_Panel(f"Scheduled: {name}", {name: y}))
        elif group == "eval":
            if any(word in name for word in UNIT_INTERVAL) and np.nanmin(y) >= 0 and np.nanmax(y) <= 1:
                unit_metrics.series[name] = y
            else:
                metrics.append(_Panel(f"Metric: {name}", {name: y}))
        elif name in ("logits_real", "logits_fake"):
            side = "D(real)" if name == "logits_real" else "D(fake)"
            logits.series[side if phases_with_logits == 1 else f"{group} {side}"] = y
        elif name == "real_above_fake" or name.startswith("sign_"):
            what = {"real_above_fake": "D(real) > D(fake)", "sign_real": "D(real) > 0", "sign_fake": "D(fake) > 0"}
            shares.series[what.get(name, name) if phases_with_logits == 1 else f"{group} {what.get(name, name)}"] = y
            shares.share = shares.share and np.nanmin(y) >= 0
        elif name == "grad_norm":
            norms.series[group] = y
        elif name == "skipped":
            if np.nanmax(y) > 0:
                skipped.series[group] = y
        elif not re.match(r"loss($|_)", name) and PENALTY.search(name):
            penalties.series[f"{group} {name}"] = y
        else:
            panel = losses.setdefault(group, _Panel(f"Loss: {group.replace('_', ' ')}", noisy=True))
            panel.series[name.removeprefix("loss_")] = y
    for panel in losses.values():  # a phase of one term: its loss is that term
        total = panel.series.pop("loss", None)
        if total is not None and not (len(panel.series) == 1 and np.allclose(*panel.series.values(), total, equal_nan=True)):
            panel.series["loss (sum)"] = total
    found = [*losses.values(), logits, shares, penalties, norms, skipped, rates, *values, *metrics, unit_metrics, speed]
    return [p for p in found if any(not p.log or np.nanmax(y) > 0 for y in p.series.values())], constants


def _curves(lines: list[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Every key that holds at least one finite number, in order of appearance, as one array over all lines."""
    curves: dict[str, np.ndarray] = {}
    for i, line in enumerate(lines):
        for key, value in line.items():
            number = _number(value)
            if math.isfinite(number):
                if key not in curves:
                    curves[key] = np.full(len(lines), np.nan)
                curves[key][i] = number
    return curves


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _kimg(line: Mapping[str, Any]) -> float:
    images = _number(line.get("images_seen"))
    return images / 1000 if math.isfinite(images) else _number(line.get("kimg"))


# How it is drawn -----------------------------------------------------------------------------------------------------


def _draw(ax: Any, panel: _Panel, kimg: np.ndarray) -> None:
    drawn = []
    for number, (name, y) in enumerate(panel.series.items()):
        there = np.isfinite(y) & ((y > 0) | (not (panel.log or panel.points)))
        if not there.any():
            continue
        x, y = kimg[there], y[there]
        drawn.append(y)
        style = {"lw": 1.6, "color": COLORS[number % len(COLORS)], "ls": "-" if number < len(COLORS) else "--", "label": name}
        if panel.points:
            style |= {"ls": "", "marker": "x", "ms": 6}
        elif len(x) > 2 * BINS:
            parts = np.array_split(np.arange(len(x)), BINS)
            low, high = (np.array([f(y[p]) for p in parts]) for f in (np.min, np.max))
            x, y = (np.array([a[p].mean() for p in parts]) for a in (x, y))
            ax.fill_between(x, low, high, color=style["color"], alpha=0.16, lw=0)
        elif len(x) <= 40:
            style |= {"marker": "o", "ms": 3.5}
        ax.plot(x, y, **style)

    ax.set_title(panel.title, fontsize=11, loc="left", fontweight="bold", color="#1a202c")
    ax.set_xlabel("kimg", fontsize=9, color="#4a5568")
    ax.set_ylabel(panel.unit, fontsize=9, color="#4a5568")
    if panel.log and drawn:
        ax.set_yscale("log")
    elif panel.share or panel.points:
        ax.set_ylim(-0.03, 1.03)
    elif panel.noisy and drawn:
        _ignore_spikes(ax, np.concatenate(drawn))
    if np.ptp(kimg) > 0:
        margin = 0.02 * np.ptp(kimg)
        ax.set_xlim(kimg.min() - margin, kimg.max() + margin)
    ax.grid(True, which="major", color="#e2e8f0", lw=0.8)
    ax.grid(True, which="minor", color="#edf2f7", lw=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", labelsize=8.5, colors="#4a5568", length=0)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#cbd5e0")
    if drawn and (len(panel.series) > 1 or not panel.title.endswith(next(iter(panel.series)))):
        ax.legend(fontsize=8, frameon=True, framealpha=0.8, edgecolor="none", loc="best", ncols=1 + (len(panel.series) > 6))


def _ignore_spikes(ax: Any, y: np.ndarray) -> None:
    """Fit the axis to all but 1% of the values at either end (at least one) if those would flatten the rest to a line."""
    if len(y) < 20:
        return
    y = np.sort(y)
    few = max(1, len(y) // 100)
    low, high = y[few], y[-1 - few]
    span = high - low
    if span > 0 and y[-1] - y[0] > 8 * span:
        ax.set_ylim(low - 0.5 * span, high + 0.5 * span)
        ax.text(0.99, 0.02, "outliers cut off", transform=ax.transAxes, ha="right", fontsize=7.5, color="#718096")
