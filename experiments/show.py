"""Tables and pictures of results."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def groups(runs: Sequence[dict[str, Any]], *names: str) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Runs that agree in the options ``names``, by the values of these, in the order of the sweep."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault(tuple(run.get(name, "") for name in names), []).append(run)
    return found


def numbers(runs: Sequence[dict[str, Any]], name: str) -> list[float]:
    """A value of each run that has it."""
    return [run["values"][name] for run in runs if run["values"].get(name) is not None]


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """``mean ± standard deviation`` (over n - 1) of the seeds; - if there are none."""
    if not values:
        return "-"
    mean = format(statistics.fmean(values), form)
    return mean if len(values) == 1 else f"{mean} ± {format(statistics.stdev(values), form)}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A markdown table; the first ``words`` columns to the left, numbers to the right."""
    sides = ["---" if i < words else "--:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(head), sides, *map(list, rows)])


def save_figure(figure: Any, path: Path) -> Path:
    """A PNG that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.tmp")
    figure.savefig(part, format="png")
    os.replace(part, path)
    return path


def plain_axes(ax: Any, title: str = "", x: str = "", y: str = "") -> None:
    """The look of all curves."""
    ax.set_title(title, fontsize=10.5, loc="left", fontweight="bold", color="#1a202c")
    ax.set_xlabel(x, fontsize=9, color="#4a5568")
    ax.set_ylabel(y, fontsize=9, color="#4a5568")
    ax.grid(True, which="major", color="#e2e8f0", lw=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", labelsize=8.5, colors="#4a5568", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#cbd5e0")


def dots(ax: Any, found: Mapping[str, Sequence[float]], color: str = "#2b6cb0") -> None:
    """A row for each name, the first on top: a dot a seed, a bar at their mean and a number beside it."""
    names = list(found)
    for row, name in enumerate(names):
        values = found[name]
        if not values:
            continue
        mean = statistics.fmean(values)
        ax.plot(values, [row] * len(values), "o", color=color, alpha=0.55, ms=6, mew=0)
        ax.plot([mean, mean], [row - 0.28, row + 0.28], color="#1a202c", lw=1.6)
        beside = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "fontsize": 8.5, "color": "#4a5568"}
        ax.annotate(spread(values, ".1f"), (max(values), row), **beside)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.margins(x=0.2)
