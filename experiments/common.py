"""What the experiments share: sweeps of train.py whose runs are trained, measured and kept one by one.

An experiment is a few sweeps in the syntax of ``train.py -m``. Every combination is trained in this process by train.py's own
job, in a folder of its own under ``experiments/runs/<experiment>/``; its numbers, from evaluate.py's function or from the run's
log, lie beside that folder as one JSON. A finished run is not made again, an interrupted one goes on where it stopped. All that
is finished is then gathered in ``experiments/results/<experiment>.json``, from which the table and the pictures are drawn.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from errors import UserError
from train import job
from training import checkpoint, cli
from training.config import typed
from training.folder import RunFolder
from training.log import JsonLines
from training.measure import measure

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
FORMAT = "gan-zoo experiment 1"


@dataclass
class Options:
    """report   true: table and pictures from the results of before; nothing is trained.
    only     values of the sweep: only=ring,lsgan makes the runs that have all of them, and leaves the others for later.
    seeds    a list: 0,1,2. Default: the experiment's.
    kimg     length of the runs in thousands of images, to try an experiment. Such runs, their results and pictures stay by
             themselves, in <runs>/<experiment>-<kimg>kimg/.
    runs     folder of the runs; default: experiments/runs.
    results  folder of <experiment>.json; default: experiments/results.
    docs     folder of the pictures; default: docs.
    device   as in train.py.
    """

    report: bool = False
    only: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    kimg: float | None = None
    runs: str | None = None
    results: str | None = None
    docs: str | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Sweep:
    """Runs of train.py: every combination of what ``words`` list, in the syntax of ``train.py -m``; ``plain``: further options,
    taken as they are and named nowhere (a file of the user's)."""

    words: str
    plain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One combination: its options as train.py takes them, and its folder. ``<folder>.json`` and ``.log`` lie beside it."""

    words: tuple[str, ...]
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        """Name -> value as typed."""
        return dict(word.split("=", 1) for word in self.words)

    @property
    def record_path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def log_path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def record(self) -> dict[str, Any]:
        """What is known of it: words, CPU seconds, threads and, once it is finished, its values. UserError for another run's."""
        if not self.record_path.exists():
            return {"words": list(self.words), "cpu_seconds": 0.0}
        found = _read(self.record_path, {"words": list, "cpu_seconds": int | float}, "make the run's record anew")
        if "values" in found:
            found = _read(self.record_path, {"values": dict, "threads": int}, "make the run's record anew")
        if found["words"] != list(self.words):
            odd = sorted(set(map(str, found["words"])) ^ set(self.words))
            raise UserError(f"runs={self.folder}: made with other options than those of now ({' '.join(odd)}); delete it, or "
                            "give another runs=FOLDER")  # fmt: skip
        return found


@dataclass(frozen=True)
class Experiment:
    """name      of its results and pictures.     about     its docstring, for --help.
    sweeps    (options) -> its sweeps; each states a total_kimg.
    names     the options that name a run, in this order.
    measure   (run) -> its values, numbers and lists for JSON; called once, after training.
    table     (finished runs as in the results) -> a markdown table.
    draw      (finished runs, experiment's options, folder of pictures) -> the files written.
    seconds   (options of a run) -> about how many CPU seconds a thousand images take, for the forecast.
    protocol  what the numbers are, in words, by name.
    """

    name: str
    about: str
    sweeps: Callable[[Any], Sequence[Sweep]]
    names: tuple[str, ...]
    measure: Callable[[Run], dict[str, Any]]
    table: Callable[[list[dict[str, Any]]], str]
    draw: Callable[[list[dict[str, Any]], Any, Path], list[Path]]
    seconds: Callable[[Mapping[str, str]], float]
    protocol: Mapping[str, Any]
    seeds: tuple[int, ...] = (0, 1, 2)
    schema: type[Options] = Options


def main(experiment: Experiment, argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m experiments.<name> [option=value …]``; the exit status."""

    def usage() -> str:
        schema = experiment.schema
        own = "" if schema is Options else f"{schema.__doc__}\n    "
        return f"{experiment.about}\n\nOptions\n    {own}{Options.__doc__}"

    return cli.simple_main(lambda values: _job(experiment, values), usage, argv)


def _job(experiment: Experiment, values: dict[str, Any]) -> int:
    options = _options(experiment, values)
    places = _places(experiment, options)
    for place, name in places.items():  # before hours of work
        if not options.report or place == _pictures(experiment, options):
            cli.check_writable(name, place, folder=True)
    try:
        return _report(experiment, options) if options.report else _make_all(experiment, options)
    except OSError as error:  # a full disk, a folder that is gone
        file = Path(error.filename or experiment.name)
        inside = [place for place in places if error.filename and file.is_relative_to(place)]
        name = f"{places[max(inside, key=lambda place: len(place.parts))]}=" if inside else ""
        raise UserError(f"{name}{file}: {error.strerror or error}") from error


def _places(experiment: Experiment, options: Any) -> dict[Path, str]:
    """Where files are written, and the option that says so: with kimg= all lies with the runs."""
    found = {_home(experiment, options): "runs"}
    for name, place in (("results", results_path(experiment, options).parent), ("docs", _pictures(experiment, options))):
        found.setdefault(place, name)
    return found


def _make_all(experiment: Experiment, options: Any) -> int:
    """Every run that is chosen and not finished, then the report."""
    runs = plan(experiment, options)
    chosen = [run for run in runs if set(options.only) <= set(run.options.values())]
    if not chosen:
        raise UserError(f"only={','.join(options.only)}: no run of this experiment has all of these values")
    records = {run: run.record() for run in runs}
    todo = [run for run in chosen if "values" not in records[run]]
    print(f"{experiment.name}: {len(chosen)} runs, {len(chosen) - len(todo)} of them finished; the others take about "
          f"{forecast(experiment, todo)} minutes of one CPU thread", flush=True)  # fmt: skip
    status = 0
    for run in todo:
        status = _make(run, records[run], experiment.measure, options.device)
        if status:
            print(f"stopped; the same command goes on with {run.folder}", flush=True)
            break
        todo = todo[1:]
        print(f"{run.folder.name}: {_brief(records[run]['values'])} ({records[run]['cpu_seconds']:.0f} s; "
              f"{forecast(experiment, todo)} minutes to go)", flush=True)  # fmt: skip
    _gather(experiment, options, runs)
    return status or _report(experiment, options)


def _options(experiment: Experiment, values: dict[str, Any]) -> Any:
    values = dict(values)
    for name in ("only", "seeds"):
        if name in values:
            values[name] = [part.strip() for part in str(values[name]).split(",") if part.strip()]
    if not all(seed.isdigit() for seed in values.get("seeds", [])):
        raise UserError(f"seeds={','.join(values['seeds'])}: whole numbers, at least 0, are expected; for example seeds=0,1,2")
    for name in {f.name for f in fields(experiment.schema)} & values.keys():  # a folder may be called 2024
        if name in ("runs", "results", "docs", "path") and values[name] is not None:
            values[name] = str(values[name])
    options = typed(experiment.schema, values, "")
    if options.kimg is not None and not options.kimg > 0:
        raise UserError(f"kimg={options.kimg}: must be above 0")
    options.seeds = list(dict.fromkeys(options.seeds)) or list(experiment.seeds)  # seeds=0,0 is one run
    return options


def _home(experiment: Experiment, options: Any) -> Path:
    """Where the runs lie."""
    runs = HERE / "runs" if options.runs is None else Path(options.runs).expanduser()
    return runs / (experiment.name if options.kimg is None else f"{experiment.name}-{options.kimg:g}kimg")


def results_path(experiment: Experiment, options: Any) -> Path:
    """The JSON of the results."""
    default = HERE / "results" if options.kimg is None else _home(experiment, options)
    return (default if options.results is None else Path(options.results).expanduser()) / f"{experiment.name}.json"


def _pictures(experiment: Experiment, options: Any) -> Path:
    default = DOCS if options.kimg is None else _home(experiment, options)
    return default if options.docs is None else Path(options.docs).expanduser()


def plan(experiment: Experiment, options: Any) -> list[Run]:
    """Every run of the experiment, in the order they are made: the first seed of everything first."""
    home, runs = _home(experiment, options), []
    for sweep in experiment.sweeps(options):
        words = [word for word in sweep.words.split() if options.kimg is None or not word.startswith("total_kimg=")]
        words += [] if options.kimg is None else [f"total_kimg={options.kimg:g}"]
        if "seed" not in {word.split("=")[0] for word in words}:
            words.append(f"seed={','.join(map(str, options.seeds))}")
        for combination in cli.sweep(words):
            given = dict(word.split("=", 1) for word in combination)
            name = "-".join(given[name] for name in experiment.names if name in given)
            runs.append(Run((*combination, *sweep.plain), home / name))
    names = [run.folder for run in runs]
    if len(set(names)) < len(names):
        raise ValueError(f"{experiment.name}: two runs of one name; add an option to names")
    return sorted(runs, key=lambda run: int(run.options["seed"]))


def forecast(experiment: Experiment, runs: Sequence[Run]) -> int:
    """Minutes of one CPU thread that ``runs`` take, about: a second each to begin and to measure, and their images."""
    seconds = [1 + float(run.options["total_kimg"]) * experiment.seconds(run.options) for run in runs]
    return math.ceil(sum(seconds) / 60)


def _brief(values: Mapping[str, Any]) -> str:
    """The single numbers among ``values``."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, int | float)) or "kept"


# one run -----------------------------------------------------------------------------------------------------------------


def _make(run: Run, record: dict[str, Any], measured: Callable[[Run], dict[str, Any]], device: str) -> int:
    """Train (or go on with) ``run``, measure it, write its record. The exit status: 0, or that of what stopped it."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    record["threads"] = torch.get_num_threads()
    _write(run.record_path, json.dumps(record))
    place = f"resume={run.folder}" if RunFolder(run.folder).holds_run else f"run_dir={run.folder}"
    words = [place, f"device={device}", *(run.words if place.startswith("run_dir") else ())]
    with run.log_path.open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        began = time.process_time()
        status = cli.main(job, words)
        record["cpu_seconds"] += time.process_time() - began
        log.flush()
        diverged = status == 1 and "training diverged" in run.log_path.read_text().splitlines()[-1]
        if status == 0:
            began = time.process_time()
            status = cli.guard(lambda: record.update(clock(run.folder), values=measured(run)))
            record["measuring_cpu_seconds"] = time.process_time() - began
    if diverged:
        record |= {**clock(run.folder), "values": {"diverged": True}}
        status = 0
    _write(run.record_path, json.dumps(record))
    if status not in (0, 130, 143):
        lines = run.log_path.read_text().splitlines()
        raise UserError(f"{run.folder.name}: {lines[-1].removeprefix('error: ') if lines else f'status {status}'}")
    return status


def clock(folder: Path) -> dict[str, float]:
    """Thousands of images and steps of a run's last checkpoint."""
    at = checkpoint.load(folder / "checkpoints" / "latest.pt")["clock"]
    return {"kimg": at["images_seen"] / 1000, "steps": at["step"]}


def scores(run: Run, metrics: str, samples: int, **more: Any) -> dict[str, float]:
    """Values by evaluate.py's function of the EMA weights of a run's last checkpoint; its JSON is <run>-scores.json."""
    out = run.folder.with_name(f"{run.folder.name}-scores.json")
    measure({"checkpoint": str(run.folder), "metrics": metrics, "samples": samples, "device": "cpu", "out": str(out), **more})
    found: dict[str, float] = {}
    for score in json.loads(out.read_text())["results"][0]["scores"]:
        found |= score["values"]
    return found


def curve(run: Run, name: str) -> list[list[float]]:
    """[[kimg, value], …] of ``eval/<name>`` in a run's log."""
    lines = JsonLines.read(run.folder / "log.jsonl")
    return [[line["kimg"], line[f"eval/{name}"]] for line in lines if line.get(f"eval/{name}") is not None]


# results -----------------------------------------------------------------------------------------------------------------


def _gather(experiment: Experiment, options: Any, runs: Sequence[Run]) -> None:
    """All that is finished, also by another process with other parts to make; one run a line."""
    records = {run: run.record() for run in runs}
    done = [run for run in runs if "values" in records[run]]
    entries = []
    for run in done:
        record = records[run]
        given = {name: run.options[name] for name in experiment.names if name in run.options}
        kept = {"cpu_seconds": round(record["cpu_seconds"], 1), "threads": record["threads"]}
        kept |= {name: record[name] for name in ("kimg", "steps") if name in record}
        entries.append({**given, "values": _rounded(record["values"]), **kept})
    total = sum(record["cpu_seconds"] + record.get("measuring_cpu_seconds", 0) for record in records.values())
    head = {
        "format": FORMAT,
        "experiment": experiment.name,
        "command": f"python -m experiments.{experiment.name}",
        "sweeps": [" ".join(["python train.py -m", sweep.words, *(f"{word.split('=')[0]}=FILE" for word in sweep.plain)])
                   for sweep in experiment.sweeps(options)],
        "protocol": dict(experiment.protocol),
        "runs_finished": len(done), "runs_of_all": len(runs), "cpu_minutes": round(total / 60, 1),
        "threads": sorted({record["threads"] for record in records.values() if "threads" in record}),
        "torch": torch.__version__,
    }  # fmt: skip
    text = json.dumps(head, indent=1).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(entry, separators=(",", ": ")) for entry in entries)
    _write(results_path(experiment, options), f'{text},\n "runs": [\n{lines}\n ]\n}}\n')


def _rounded(value: Any) -> Any:
    """Numbers to six significant digits; JSON has no NaN."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _report(experiment: Experiment, options: Any) -> int:
    """Pictures and table from the results."""
    path = results_path(experiment, options)
    if not path.exists():
        raise UserError(f"{path}: no results yet; leave report=true out to make them")
    needed = {"format": str, "experiment": str, "runs": list, "runs_finished": int, "runs_of_all": int, "threads": list,
              "cpu_minutes": int | float}  # fmt: skip
    anew = "gather them anew without report=true"
    found = _read(path, needed, anew)
    if (found["format"], found["experiment"]) != (FORMAT, experiment.name):
        raise UserError(f"{path}: {found['format']}, {found['experiment']}; wanted: {FORMAT}, {experiment.name}; delete it")
    if found["runs"]:
        try:
            pictures = experiment.draw(found["runs"], options, _pictures(experiment, options))
            table = experiment.table(found["runs"])
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            if not options.report:  # just made, by this very code
                raise
            reason = f"{type(error).__name__}: {cli.one_line(error)}"
            raise UserError(f"{path}: its runs lack what table and pictures show ({reason}); delete it, to {anew}") from error
        print(f"\n{table}\n")
        threads = "/".join(map(str, found["threads"]))
        print(f"{found['runs_finished']} of {found['runs_of_all']} runs, {found['cpu_minutes']:g} CPU minutes ({threads} thread"
              f"{'' if threads == '1' else 's'})")  # fmt: skip
        for file in [path, *pictures]:
            print(f"  {file}")
    return 0


def _read(path: Path, needed: Mapping[str, Any], otherwise: str) -> dict[str, Any]:
    """A JSON file of ours; UserError if it is cut off, or lacks one of the ``needed`` (name -> its type)."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path}: damaged, not JSON ({error}); delete it, to {otherwise}") from error
    for name, kind in needed.items():
        if not isinstance(found, dict) or not isinstance(found.get(name), kind):
            raise UserError(f"{path}: damaged or of another kind, without {name}; delete it, to {otherwise}")
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.tmp")
    part.write_text(text)
    os.replace(part, path)
