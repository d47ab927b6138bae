"""What an evaluation leaves: the JSON with the whole protocol, a short table, a curve over checkpoints, sheets of neighbours."""

from __future__ import annotations

import json
import math
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data import DatasetOptions, DataSource, to_float
from errors import UserError
from metrics.distances import nearest
from metrics.extractors import Extractor
from metrics.score import FeatureSet, column, reference_indices
from training.log import kimg_name
from training.pictures import save_grid
from training.processes import Processes

FORMAT = "gan-zoo evaluation 1"
SHEET_ROWS, SHEET_NEIGHBOURS = 8, 5
RESIZERS = {True: "centre square; box filter for whole factors, else Lanczos, bicubic to enlarge (Pillow)", False: "none"}


class Report:
    """Gathers scores and writes them. ``options``: those of evaluate.py."""

    def __init__(
        self, options: Any, dataset: DatasetOptions, source: DataSource, extractors: list[Extractor], missing: dict[str, str],
        processes: Processes,
    ):  # fmt: skip
        self.options, self.extractors, self.missing = options, extractors, missing
        spec = source.spec
        self.head = {
            "format": FORMAT,
            "reference": {
                "dataset": dataset.name, "path": dataset.path, "split": options.split, "data_hash": source.content_hash,
                "images": len(reference_indices(len(source), options.reference)), "of": len(source),
                "resolution": spec.resolution, "channels": spec.channels, "classes": spec.classes,
                "resizer": RESIZERS[dataset.resolution is not None],
            },
            "extractors": {e.name: e.protocol for e in extractors},
            "missing": missing,
            "batch_size": options.batch_size, "device": str(processes.device), "processes": processes.count,
            "versions": {
                "torch": torch.__version__, "torch-fidelity": version("torch-fidelity"), "numpy": version("numpy"),
                "python": platform.python_version(),
            },
        }  # fmt: skip
        self.results: list[dict[str, Any]] = []
        self.sheets: list[Path] = []
        self.copies: dict[str, Any] = {}

    def add(self, subject: Any, scores: list[dict[str, Any]]) -> None:
        """The scores of one subject."""
        self.results.append({"title": subject.title, "of": subject.about, "scores": scores})

    @property
    def path(self) -> Path:
        """Where the JSON goes: out=, or beside the checkpoint."""
        options = self.options
        if options.out is not None:
            return Path(options.out).expanduser()
        if options.all:
            return Path(options.checkpoint).expanduser() / f"eval-{options.weights}-{self._count()}.json"
        if options.checkpoint is None:
            return Path(f"eval-images-{self._count()}.json")
        of = self.results[-1]["of"]
        name = kimg_name(round(1000 * of["kimg"]))
        return Path(of["checkpoint"]).parent / f"{name}-eval-{options.weights}-{self._count()}.json"

    def _count(self) -> int:
        return self.results[-1]["of"]["count"]

    def write(self) -> None:
        """The JSON, the curve if there are several checkpoints, and the table on screen."""
        content = {**self.head, "results": self.results}
        written = [self.path, *self.sheets]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f".{self.path.name}.tmp")
            part.write_text(json.dumps(_finite(content), indent=1) + "\n")
            os.replace(part, self.path)
            if self.options.all:
                written.append(plot_curves(self.results, self.path.with_suffix(".png")))
        except OSError as error:
            raise UserError(f"out={self.path}: cannot write there ({error.strerror})") from None
        for line in self.table():
            print(line)
        for path in written:
            print(f"  {path}")

    def line(self) -> str:
        """The last subject's numbers."""
        return f"{self.results[-1]['title']}: " + ", ".join(f"{name} {value:.4g}" for name, value in _values(self.results[-1]))

    def table(self) -> list[str]:
        """The numbers in short: a row a subject, a column a value."""
        names = list(dict.fromkeys(name for result in self.results for name, _ in _values(result)))
        rows = []
        for result in self.results:
            values = dict(_values(result))
            rows.append([result["title"], *(f"{values[name]:.4g}" if name in values else "-" for name in names)])
        head = ["", *names]
        if len(self.extractors) == 1:
            head = [name.partition(" (")[0] for name in head]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in [head, *rows]]
        reference = self.head["reference"]
        lines.append(
            f"{self._count():,} images each, against {reference['images']:,} of {reference['dataset']} ({reference['split']}, "
            f"data {reference['data_hash'][:8]})"
            + (f", {self.options.weights} weights, seed {self.options.seed}" if self.options.checkpoint else "")
        )
        for extractor in self.extractors:
            accuracy = extractor.protocol.get("held_out_accuracy")
            text = f"extractor {extractor.name}: {extractor.protocol['layer']}"
            text += f", recognises {accuracy:.1%} of held-out images" if accuracy is not None else ""
            lines.append(text + (f"; {extractor.protocol['warning']}" if "warning" in extractor.protocol else ""))
        short = {s["name"]: s["missing"] for result in self.results for s in result["scores"] if "missing" in s}
        lines += [f"missing: {name}: {reason}" for name, reason in short.items()]
        lines += [f"missing: {name}: {reason}" for name, reason in self.missing.items()]
        return lines


def _values(result: dict[str, Any]) -> list[tuple[str, float]]:
    """(column, number) of a result, lists and deviations left out."""
    found = []
    for score in result["scores"]:
        for key, value in score["values"].items():
            if isinstance(value, float) and not key.endswith("_std"):
                found.append((f"{column(key, score['extractor'])} ({score['extractor']})", value))
    return found


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plot_curves(results: list[dict[str, Any]], path: Path) -> Path:
    """Each number over kimg, a panel each, with that of real images (if scored) as a dashed line."""
    from matplotlib.figure import Figure

    runs = [r for r in results if "kimg" in r["of"]]
    floors = [r for r in results if "kimg" not in r["of"]]
    names = list(dict.fromkeys(name for result in runs for name, _ in _values(result)))
    columns = 2 if len(names) == 4 else min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), dpi=110, facecolor="white", layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    better = {
        f"{column(key, s['extractor'])} ({s['extractor']})": s["better"]
        for r in runs[:1] for s in r["scores"] for key in s["values"]
    }  # fmt: skip
    for ax, name in zip(axes, names):
        x, y = zip(*((r["of"]["kimg"], dict(_values(r))[name]) for r in runs if name in dict(_values(r))))
        ax.plot(x, y, color="#2b6cb0", marker="o", markersize=3.5, linewidth=1.4, label="model")
        for floor in floors:
            value = dict(_values(floor)).get(name, math.nan)
            ax.axhline(value, color="#4a5568", linestyle="--", linewidth=1, label=floor["title"])
        values = [*y, *(dict(_values(floor)).get(name, y[0]) for floor in floors)]
        if min(values) > 0 and max(values) > 20 * min(values):
            ax.set_yscale("log")
        ax.set_title(f"{name}, {better[name]} is better", fontsize=10, loc="left")
        ax.set_xlabel("kimg", fontsize=9)
        ax.grid(color="#edf2f7")
        ax.spines[["top", "right"]].set_visible(False)
        if floors and ax is axes[0]:
            ax.legend(fontsize=8, frameon=False)
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    part = path.with_name(f".{path.name}.tmp")
    figure.savefig(part, format="png")
    os.replace(part, path)
    return path


def neighbour_sheet(
    report: Report, subject: Any, seen: dict[str, FeatureSet], reference: dict[str, FeatureSet], source: DataSource, options: Any
) -> Path:
    """A picture of the samples that lie closest to training images, each beside its nearest ones; and in the report how close
    samples are compared with how close training images are to each other (a ratio far below 1 means copying)."""
    name = next(iter(seen))
    fake, real = seen[name].features, reference[name].features
    k = min(SHEET_NEIGHBOURS, len(real) - 1)
    distances, indices = nearest(fake, real, k)
    some = torch.linspace(0, len(real) - 1, min(2000, len(real))).long()
    own, _ = nearest(real[some], real, 1, but=some)
    rows = distances[:, 0].argsort()[:SHEET_ROWS]
    tiles: list[Tensor] = []
    for row in rows.tolist():
        tiles.append(to_float(subject.images_at(row, row + 1).cpu()))
        tiles.append(to_float(source.batch(reference[name].indices[indices[row]])[0].cpu()))
    ratio = (distances[:, 0].median() / own.median()).item()
    report.results[-1]["neighbours"] = {
        "extractor": name, "median_distance_ratio": ratio, "samples": rows.tolist(),
        "distances": distances[rows, 0].tolist(), "meaning": "ratio: the median distance of samples to their nearest reference "
        "image over that of reference images to each other; far below 1: copies",
    }  # fmt: skip
    path = report.path.with_name(f"{report.path.stem}-neighbours{f'-{len(report.sheets)}' if report.sheets else ''}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_grid(
        path, torch.cat(tiles), 1 + k, row_titles=[f"{distances[row, 0]:.2f}" for row in rows],
        column_titles=["sample", *(f"nearest {i + 1}" for i in range(k))],
        caption=f"{subject.title}: of {len(fake):,} samples those closest to a reference image (distance of {name} features on "
        f"the left); samples are {ratio:.2f} times as far from the nearest reference image as these from each other (medians)",
    )  # fmt: skip
