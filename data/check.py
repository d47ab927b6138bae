"""The data doctor: ``python -m data.check PATH [option=value …]`` reads every file and says what to do about each problem.

PATH is what ``dataset.path`` would be. Options, as in training: dataset (default folder), resolution, pad_to, on_error, workers,
batch_size (default 64); labels=true if the model needs labels. Exit status 0: training can start; 1: it would not; 2: a mistake
in these words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

import data
from data.decode import CHUNK
from data.findings import Findings, Line
from data.options import DatasetOptions
from data.store import survey
from errors import UserError, nearest

OPTIONS = {"dataset": str, "resolution": int, "pad_to": int, "on_error": str, "workers": int, "batch_size": int, "labels": bool}
CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "dataset"


def check(options: DatasetOptions, batch_size: int | None = None, need_labels: bool = False) -> Iterator[Line]:
    """The report on the files that ``options`` name for training in batches of ``batch_size``. Nothing is kept."""
    builder = data.DATASETS[options.name]
    if not hasattr(builder, "collect"):
        yield Line("ok", f"dataset={options.name} comes with a library or is made here: nothing to check")
        return
    findings, labels = Findings(), None
    try:
        collection = builder.collect(options)
        with collection.items() as items:
            findings.ignored, findings.notes = items.ignored, list(items.notes)
            try:
                labels = items.read_labels()
            except UserError as error:
                yield Line("stop", f"{error}")
            kept: list[int] = []
            for indices, _ in survey(items, labels, findings, lambda *_: None, CHUNK, options.workers, collection.title, False):
                kept += indices
    except UserError as error:
        yield Line("stop", str(error))
        return
    if labels is not None and kept:
        findings.per_class = _per_class(labels[kept], collection.classes, collection.class_names)
    yield from findings.lines(options.resolution, options.pad_to, batch_size, options.on_error == "strict")
    if not findings.count:
        yield Line("stop", f"no image can be read in {options.path}: give another path, or replace the files")
    if need_labels and labels is None:
        yield Line("stop", "no labels, and the model needs them: make one sub-folder a class, add a dataset.json with labels, or "
                           "train an unconditional model")  # fmt: skip


def _per_class(labels: Tensor, classes: int | None, names: Sequence[str]) -> list[tuple[str, int]]:
    counts = labels.bincount(minlength=classes or 0).tolist()
    return [(names[k] if len(names) == len(counts) else str(k), n) for k, n in enumerate(counts)]


def parse(words: Sequence[str]) -> tuple[DatasetOptions, int, bool]:
    """(options, batch size, whether labels are needed) of the command line; UserError for anything it does not know."""
    values: dict[str, Any] = {}
    paths = [word for word in words if word.partition("=")[0].removeprefix("dataset.") not in OPTIONS]
    for word in words:
        if word in paths:
            continue
        name, _, value = word.partition("=")
        name = name.removeprefix("dataset.")
        found = yaml.safe_load(value) if OPTIONS[name] is not str else value
        if type(found) is not OPTIONS[name]:
            raise UserError(f"{word}: a value of type {OPTIONS[name].__name__} is expected")
        values[name] = found
    if len(paths) != 1:
        strange = next((p for p in paths if "=" in p and not Path(p).exists()), None)
        if strange:
            raise UserError(f"{strange}: unknown option, {nearest(strange.partition('=')[0], OPTIONS)}")
        raise UserError("one PATH is expected: python -m data.check PATH [option=value …]")
    name = values.pop("dataset", "folder")
    if name not in data.DATASETS:
        raise UserError(f"dataset={name}: unknown dataset, {nearest(name, data.DATASETS)}")
    batch_size, labels = values.pop("batch_size", 64), values.pop("labels", False)
    defaults = {}
    if (CONFIGS / f"{name}.yaml").is_file():
        defaults = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    options = DatasetOptions(**{**defaults, **values, "name": name, "path": paths[0]})
    options.check()
    return options, batch_size, labels


def main(words: Sequence[str]) -> int:
    """Print the report; the exit status."""
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    stop = False
    try:
        for line in check(*parse(words)):
            print(line, flush=True)
            stop |= line.level == "stop"
    except UserError as error:
        print("error:", error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print("training would not start" if stop else "training can start")
    return int(stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
