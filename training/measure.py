"""What ``evaluate.py`` calls: scores of a checkpoint, of all checkpoints of a run, or of other images, with their protocol."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from tqdm import tqdm

import data
from data import DatasetOptions, DataSource, Spec
from data.points import GEOMETRIES
from errors import UserError, nearest
from metrics.extractors import EXTRACTORS, PUBLISHED, Extractor, Request, Unavailable, at_hand, of_this_project
from metrics.random_state import apart
from metrics.score import METRICS, FeatureSet, ImagesAt, features_of, obstacle, reference_of, scores
from training import checkpoint
from training.cli import CONFIGS, check_writable
from training.config import build_config, typed
from training.evaluation import Samples, data_labels, extractor_in_group, group_of
from training.processes import Processes
from training.report import Report, neighbour_sheet
from training.sampling import Loaded, load_gan, sample_labels

SAMPLES = 50_000  # what papers use
SPLITS = ("train", "test")
MADE_HERE = ("digits", "stacked_digits", *GEOMETRIES)  # data that reads no files
PIXELS = {"images": "rounded to 8 bits", "points": "none, coordinates in fp32"}


@dataclass
class EvaluateScriptOptions:
    """Options of evaluate.py.

    checkpoint  a run folder (its checkpoints/latest.pt) or a checkpoint file.
    all         true: every checkpoints/kimg*.pt of the run folder, and a curve.
    compare     also score these images (the floor: real test images score like a perfect model): test, train, or a path
                that is read like dataset.path. Without checkpoint: only these.
    dataset     the reference: a name, and dataset.path=…, dataset.resolution=…; default: what the model was trained on.
    split       train or test: the part of the data that is the reference, where it has both.
    metrics     a list; default: all that apply. See below.
    samples     images of the model (and of compare=); default: 50000, or as many as there are reference images.
    reference   reference images; default: all.
    extractor   a list; default: what a metric's paper used where its weights are at hand, else classifier or random.
    weights     ema or raw.
    inception_weights, vgg_weights  weights files; default: torch's cache of downloads.
    neighbours  true: a sheet of the samples closest to training images, beside these.
    seed        sample i is a function of (seed, i, its label).
    batch_size  images at once; changes numbers by rounding only.
    device      auto, cpu, cuda, cuda:<n>, mps. Several processes (torchrun) share the sampling.
    cache       folder for trained classifiers and reference statistics.
    out         the JSON file; default: beside the checkpoint.
    """

    checkpoint: str | None = None
    all: bool = False
    compare: str | None = None
    split: str = "train"
    metrics: list[str] = field(default_factory=list)
    samples: int | None = None
    reference: int | None = None
    extractor: list[str] = field(default_factory=list)
    weights: str = "ema"
    inception_weights: str | None = None
    vgg_weights: str | None = None
    neighbours: bool = False
    seed: int = 0
    batch_size: int = 64
    device: str = "auto"
    cache: str = "cache"
    out: str | None = None


def choices() -> str:
    """What ``metrics=`` and ``extractor=`` can be, for ``--help``."""
    lines = ["metrics"] + [f"  {name:<11} {metric.title} ({metric.paper})" for name, metric in METRICS.items()]
    return "\n".join([*lines, "", f"extractor   {', '.join(EXTRACTORS)}, or a name registered with torch-fidelity"])


@dataclass
class Subject:
    """What is scored: samples of a checkpoint, or images.

    images_at  (first, last) -> uint8, or points.     labels  (n,) or None.     about  plain values for the JSON.
    """

    title: str
    images_at: ImagesAt
    labels: Tensor | None
    about: dict[str, Any]


def measure(values: dict[str, Any]) -> int:
    """Score what ``values`` (see :class:`EvaluateScriptOptions`) ask for; write the JSON, print the table."""
    options, dataset = _checked(values)
    processes = Processes(options.device)
    try:
        with apart(processes.device):
            return _measure(options, dataset, processes)
    finally:
        processes.close()


def _measure(options: EvaluateScriptOptions, dataset: Mapping[str, Any], processes: Processes) -> int:
    say = print if processes.first else lambda text: None
    files = _checkpoints(options)
    _check_out(options, files, processes)
    state = checkpoint.load(files[0]) if files else None
    dataset_options = _dataset_options(dataset, state)
    source = _images(dataset_options, options.split, "split")
    compared = None if options.compare is None else _compared(options, dataset_options)
    conditional = None
    if state is not None:
        _check_fits(_spec(state), source.spec, dataset_options)
        conditional = load_gan(str(files[0]), torch.device("cpu"), options.weights).gan.conditional
    if compared is not None:
        _check_fits(source.spec, compared.spec, dataset_options, option=f"compare={options.compare}")
    if options.neighbours and source.spec.kind == "points":
        raise UserError(f"neighbours=true: a sheet shows images, and dataset={source.spec.name} is points; leave it out")
    n = _count(options, source, compared)

    labelled = bool(source.spec.classes) and conditional is not False and (compared is None or bool(compared.spec.classes))
    source = source.to(processes.device)
    pairs, extractors, missing = _plan(options, source, labelled, processes, say)

    folder, group = Path(options.cache).expanduser(), group_of(processes)
    reference: dict[str, FeatureSet | None] = {}
    for extractor in extractors:
        with _bar(len(source), f"reference, {extractor.name}", processes) as bar:
            reference[extractor.name] = reference_of(
                extractor, source, options.reference, folder, options.batch_size, group, processes.broadcast, bar.update, say,
                processes.first,
            )  # fmt: skip

    report = Report(options, dataset_options, source, extractors, missing, processes)
    for subject in _subjects(options, files, source, compared, n, processes, state):
        with _bar(n, subject.title, processes) as bar:
            seen = features_of(extractors, n, subject.images_at, subject.labels, options.batch_size, group, bar.update)
        if isinstance(subject.images_at, Samples):
            processes.sum_([subject.images_at.broken])
            if subject.images_at.broken:
                raise UserError(
                    f"{subject.about['checkpoint']}: {int(subject.images_at.broken)} of {n} samples have pixels that are not "
                    f"finite; the {options.weights} weights are broken"
                )
        if processes.first:
            report.add(subject, scores(pairs, seen, reference, source.spec.classes, strict=bool(options.metrics)))
            if len(files) > 1:  # minutes each: tell what there is
                say(report.line())
            if options.neighbours:
                report.sheets.append(neighbour_sheet(report, subject, seen, reference, source, options))
    if processes.first:
        report.write()
    processes.wait()
    return 0


# what is asked for -----------------------------------------------------------------------------------------------------


def _checked(values: dict[str, Any]) -> tuple[EvaluateScriptOptions, dict[str, Any]]:
    """(options, the dataset options typed)."""
    dataset = {name.partition(".")[2] or "name": value for name, value in values.items() if name.split(".")[0] == "dataset"}
    values = {name: value for name, value in values.items() if name.split(".")[0] != "dataset"}
    for name in ("metrics", "extractor"):
        if isinstance(values.get(name), str):
            values[name] = [part.strip() for part in values[name].split(",") if part.strip()]
    options: EvaluateScriptOptions = typed(EvaluateScriptOptions, values, "")
    if options.checkpoint is None and options.compare is None:
        raise UserError("checkpoint: not given; checkpoint=<a run folder or a checkpoint file>, or compare=<images>, is needed")
    if options.checkpoint is None and (not dataset or options.all):
        what = "dataset=<name> and dataset.path=… are" if not dataset else "checkpoint=<a run folder> is"
        raise UserError(f"checkpoint: not given; without it {what} needed")
    for metric in options.metrics:
        if metric not in METRICS:
            raise UserError(f"metrics={metric}: unknown, {nearest(metric, METRICS)}")
    for name, low in (("samples", 2), ("reference", 2), ("batch_size", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < low:
            raise UserError(f"{name}={value}: must be at least {low}")
    for name, allowed in (("weights", ("ema", "raw")), ("split", SPLITS)):
        if getattr(options, name) not in allowed:
            raise UserError(f"{name}={getattr(options, name)}: unknown, {nearest(getattr(options, name), allowed)}")
    if options.out is not None and Path(options.out).suffix != ".json":
        raise UserError(f"out={options.out}: a name ending in .json is expected")
    return options, dataset


def _checkpoints(options: EvaluateScriptOptions) -> list[Path]:
    if options.checkpoint is None:
        return []
    if not options.all:
        return [checkpoint.find(options.checkpoint)]
    folder = Path(options.checkpoint).expanduser() / "checkpoints"
    files = checkpoint.numbered(folder)
    if not files:
        raise UserError(f"checkpoint={options.checkpoint}: all=true needs a run folder with checkpoints/kimg*.pt")
    return files


def _check_out(options: EvaluateScriptOptions, files: list[Path], processes: Processes) -> None:
    """UserError, in every process, if the report cannot be written where :class:`Report` will put it."""
    path = Path(options.out or (options.checkpoint if options.all else files[0].parent if files else ".")).expanduser()
    try:
        problem = check_writable("out", path, folder=not options.out) if processes.first else None
    except UserError as error:
        problem = f"{error}; give another out=FILE.json"
    if problem := processes.broadcast(problem):
        raise UserError(problem)


def _dataset_options(typed_by_user: Mapping[str, Any], state: Mapping[str, Any] | None) -> DatasetOptions:
    """The model's own data with what the user typed; values of configs/dataset/ where he names other data."""
    own: dict[str, Any] = {}
    if state is not None:
        try:
            own = vars(build_config(state["config"])[0].dataset).copy()
        except (UserError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"checkpoint: its config does not fit this version of the code ({error})") from error
    name = typed_by_user.get("name", own.get("name"))
    if name not in data.DATASETS:
        raise UserError(f"dataset={name}: unknown dataset, {nearest(str(name), data.DATASETS)}")
    if name != own.get("name"):
        file = CONFIGS / "dataset" / f"{name}.yaml"
        own = yaml.safe_load(file.read_text()) if file.is_file() else {}
    return typed(DatasetOptions, {**own, **typed_by_user, "name": name}, "dataset")


def _images(options: DatasetOptions, split: str, option: str) -> DataSource:
    """The data's ``split``, which ``option`` names; data that come as one set count as train."""
    builder = data.DATASETS[options.name]
    in_parts = "split" in inspect.signature(builder).parameters and not (options.path and Path(options.path).is_file())
    options.check()
    if in_parts and split != "train":
        return builder(options, split=split)
    if split != "train":
        hints = {"compare": "give compare=PATH", "split": "give dataset.path=PATH"}
        if options.name in MADE_HERE:
            hints = {"compare": "compare=train gives the floor", "split": "leave split out"}
        raise UserError(f"{option}={split}: dataset={options.name} is one set here, without a {split} part; {hints[option]}")
    return data.build(options)


def _compared(options: EvaluateScriptOptions, dataset: DatasetOptions) -> DataSource:
    if options.compare in SPLITS:
        return _images(dataset, options.compare, "compare")
    path = Path(options.compare).expanduser()
    if dataset.name in MADE_HERE:
        raise UserError(f"compare={options.compare}: dataset={dataset.name} reads no files; compare=train gives the floor")
    if not os.path.exists(path):
        raise UserError(f"compare={options.compare}: no such file or folder; wanted: train, test, or a path like dataset.path")
    try:
        return data.build(DatasetOptions(**{**vars(dataset), "path": str(path)}))
    except UserError as error:
        text = str(error).removeprefix("dataset.path=")  # compare= names the path
        raise UserError(f"compare={text}" if text.startswith(str(path)) else f"compare={options.compare}: {text}") from error


def _spec(state: Mapping[str, Any]) -> Spec:
    return Spec(**{**state["spec"], "class_names": tuple(state["spec"]["class_names"])})


def _check_fits(ours: Spec, theirs: Spec, dataset: DatasetOptions, option: str | None = None) -> None:
    option = option or f"dataset={dataset.name}"
    if ours.kind != theirs.kind:
        raise UserError(f"{option}: {theirs.kind}, wanted: {ours.kind}")
    if (ours.resolution, ours.channels) != (theirs.resolution, theirs.channels):
        raise UserError(
            f"{option}: images of {theirs.resolution} px and {theirs.channels} channels, wanted: {ours.resolution} px and "
            f"{ours.channels}; set dataset.resolution={ours.resolution}, or give other data"
        )
    if ours.classes and theirs.classes and ours.classes != theirs.classes:
        raise UserError(f"{option}: {theirs.classes} classes, wanted: {ours.classes}")


def _count(options: EvaluateScriptOptions, source: DataSource, compared: DataSource | None) -> int:
    """How many images of each subject are scored."""
    have = min(len(source), options.reference or len(source))
    if options.reference is not None and options.reference > len(source):
        raise UserError(f"reference={options.reference}: the reference has {len(source)} images; lower it or leave it out")
    n = options.samples or min(SAMPLES, have, len(compared) if compared is not None else have)
    if n > have:
        raise UserError(f"samples={n}: more than the {have} reference images; at most samples={have}")
    if compared is not None and n > len(compared):
        raise UserError(f"samples={n}: compare={options.compare} has {len(compared)} images; at most samples={len(compared)}")
    return n


# extractors and metrics ------------------------------------------------------------------------------------------------


def _plan(
    options: EvaluateScriptOptions, source: DataSource, labelled: bool, processes: Processes, say: Any
) -> tuple[list[tuple[str, str]], list[Extractor], dict[str, str]]:
    """((metric, extractor) pairs to compute, extractors, what is missing and why)."""
    weights = {"inception": options.inception_weights, "vgg16": options.vgg_weights}
    request = Request(source, processes.device, Path(options.cache).expanduser(), {k: v for k, v in weights.items() if v})
    missing: dict[str, str] = {}
    wanted, points = list(options.extractor), source.spec.kind == "points"
    if not wanted:
        own, published = of_this_project(source.spec), () if points else PUBLISHED
        wanted = [name for name in published if at_hand(name, request.weights)]
        for name in published:
            if name not in wanted:
                missing[name] = f"no weights at hand ({PUBLISHED[name].option}=FILE, or extractor={name} to download them)"
        if "inception" not in wanted:
            wanted.append(own)
            if not points:
                say("NOT THE PUBLISHED METRICS: without Inception's weights, distances are those of features of "
                    f"extractor={own}; compare them with each other on this very data only")
        elif own == "stacked_digits":  # the only one that knows the modes
            wanted.append(own)
    for name in request.weights:
        if name not in wanted:
            raise UserError(f"{PUBLISHED[name].option}: given, but extractor={','.join(wanted)} does not use it; add {name}")
    made: dict[str, Extractor] = {}
    for name in dict.fromkeys(wanted):
        try:
            made[name] = extractor_in_group(name, request, processes, say)
        except Unavailable as error:
            if len(wanted) == 1 or name in request.weights:
                raise
            missing[name] = str(error)
    if not made:
        raise UserError("; ".join(missing.values()))
    pairs = []
    modes = any(extractor.modes for extractor in made.values())  # few data sets have known ones: not worth a word otherwise
    for metric in options.metrics or [name for name, metric in METRICS.items() if modes or "modes" not in metric.needs]:
        preferred = _preferred(metric, list(made), bool(options.extractor))
        reasons = {name: obstacle(metric, made[name], labelled) for name in preferred}
        able = [(metric, name) for name, reason in reasons.items() if reason is None]
        if not able:
            reason = next(iter(reasons.values()))
            if options.metrics:
                raise UserError(reason)
            missing[metric] = reason
        pairs += able
    used = {name for _, name in pairs}
    return pairs, [extractor for name, extractor in made.items() if name in used], missing


def _preferred(metric: str, names: list[str], chosen: bool) -> list[str]:
    """The extractors for a metric: all that the user chose; else the paper's (VGG-16 for manifolds), else the one at hand."""
    if chosen:
        return names
    if metric in ("pr", "dc") and "vgg16" in names:
        return ["vgg16"]
    return [name for name in names if name != "vgg16"]


# subjects --------------------------------------------------------------------------------------------------------------


def _subjects(
    options: EvaluateScriptOptions, files: list[Path], source: DataSource, compared: DataSource | None, n: int,
    processes: Processes, state: Mapping[str, Any] | None,
) -> Iterator[Subject]:
    """The floor first, then one checkpoint after the other."""
    if compared is not None:
        rng = torch.Generator().manual_seed(options.seed)
        chosen = torch.randperm(len(compared), generator=rng)[:n].sort().values
        about = {
            "images": options.compare, "data_hash": compared.content_hash, "count": n, "of": len(compared), "seed": options.seed,
        }  # fmt: skip
        labels = compared.labels[chosen] if compared.spec.classes else None
        yield Subject(f"real images ({Path(options.compare).name})", lambda a, b: compared.images[chosen[a:b]], labels, about)
    for file in files:
        loaded = load_gan(str(file), processes.device, options.weights)
        labels, rule = _labels(loaded, source, options.seed, n)
        about = {
            "checkpoint": str(file), "kimg": loaded.clock.kimg, "step": loaded.clock.step, "weights": options.weights,
            "gan": loaded.config.gan.name, "trained_on": state.get("content_hash"), "count": n, "seed": options.seed,
            "batch_norm": "running statistics", "labels": rule, "pixels": PIXELS[source.spec.kind], "precision": "fp32",
            "layer_noise": f"seeded for each batch of {options.batch_size}",
        }  # fmt: skip
        samples = Samples(loaded.gan, labels, options.seed, processes.device, source.spec.kind)
        yield Subject(f"{loaded.config.gan.name} at {loaded.clock.kimg:g} kimg", samples, labels, about)


def _labels(loaded: Loaded, source: DataSource, seed: int, n: int) -> tuple[Tensor | None, str]:
    """(labels of the samples, how they were chosen)."""
    if not loaded.gan.conditional:
        return None, "none"
    if source.spec.classes:
        return data_labels(source, seed, n), "those of the reference data, drawn without replacement"
    return sample_labels(loaded.spec.classes, 0, n), "every class in turn, since the reference has no labels"


def _bar(total: int, title: str, processes: Processes) -> tqdm:
    return tqdm(total=total, desc=title, unit="images", disable=True if not processes.first else None, leave=False)
