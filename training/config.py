"""The one config: a dataclass schema, checked here whatever way the values came (YAML, command line, checkpoint).

``configs/`` holds values; the options of a model, a loss, a penalty, an optimizer and a data set are dataclasses beside
their code, found through plain registries. Nothing in a config can name code to run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import gans
from data import DatasetOptions
from data.augment import AUGMENTS
from errors import UserError, nearest
from losses import LOSSES, PENALTIES
from training.loggers import check_names
from training.optimizers import BETAS, OPTIMIZERS, optimizer_fields
from training.schedules import ScheduleOptions

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MAX_GRID, MAX_SAMPLES = 10_000, 1_000_000


@dataclass
class SampleOptions:
    """Sample grids: one every ``every_kimg`` (0: only at the start and the end), ``rows`` x ``columns`` fixed latents."""

    every_kimg: float = 0.0
    rows: int = 8
    columns: int = 8


@dataclass
class EvalOptions:
    """Evaluation during training; the best checkpoint is kept by it.

    every_kimg  how often; 0: only at the end.
    samples     images it takes; 0: never.
    metric      auto (modes covered where they are known, the share of digits recognised, else the Frechet distance), none, or a
                metric of evaluate.py.
    extractor   auto (points, stacked_digits or digits for these, else a classifier trained on the labels, else random), or an
                extractor of evaluate.py.
    cache       folder for the classifier and for statistics of the training images.
    """

    every_kimg: float = 0.0
    samples: int = 1000
    metric: str = "auto"
    extractor: str = "auto"
    cache: str = "cache"


@dataclass
class CheckpointOptions:
    """A checkpoint every ``every_kimg`` (0: only at the end); the last ``keep`` stay, besides the best."""

    every_kimg: float = 0.0
    keep: int = 3


@dataclass
class LogOptions:
    """A line in log.jsonl every ``every_kimg``."""

    every_kimg: float = 1.0


@dataclass
class Config:
    """Every option of a run. Durations are thousands of real images (kimg), fractions allowed.

    total_kimg        when training ends.
    schedule_kimg     length of every schedule; null: total_kimg, as the run was started with.
    batch_size        real images a step.
    micro_batch       the most samples of one forward; null: no limit. Gradients do not depend on it.
    seed              of the first weights and of every draw.
    device            auto, cpu, cuda, cuda:<n> or mps.
    precision         fp32, tf32, bf16 or fp16.
    channels_last     memory layout of convolutions.
    deterministic     ask torch for deterministic kernels and list those that have none.
    clip_grad_norm    the largest gradient norm of a phase; null: no limit.
    ema_half_life     of the averaged weights, in kimg; 0 copies the weights.
    augment_strength  probability of each augmentation (augment=ada; with augment.adaptive=true only the start).
    run_dir           the run's folder; null: the next free runs/<gan>-<dataset>-<n>.
    resume            a run folder, or one of its checkpoints, to go on from.
    logger            tensorboard, wandb or both: logger=[tensorboard,wandb].
    """

    gan: Any = None
    dataset: Any = None
    loss: Any = None
    penalty: Any = None
    augment: Any = None
    optim: Any = None
    schedule: Any = field(default_factory=dict)
    total_kimg: float = 100.0
    schedule_kimg: float | None = None
    batch_size: int = 64
    micro_batch: int | None = None
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"
    channels_last: bool = True
    deterministic: bool = False
    clip_grad_norm: float | None = None
    ema_half_life: float = 10.0
    augment_strength: float = 0.0
    run_dir: str | None = None
    resume: str | None = None
    logger: list[str] = field(default_factory=list)
    sample: SampleOptions = field(default_factory=SampleOptions)
    eval: EvalOptions = field(default_factory=EvalOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    log: LogOptions = field(default_factory=LogOptions)


SECTIONS = ("gan", "dataset", "loss", "penalty", "augment", "optim", "schedule")
"""Parts of the config whose schema depends on what was chosen."""

MAY_CHANGE_ON_RESUME = (
    "total_kimg",
    "micro_batch",
    "device",
    "logger",
    "dataset.workers",
    "dataset.cache",
    "dataset.memory_gb",
    "dataset.on_error",
    "sample.every_kimg",
    "eval.every_kimg",
    "eval.metric",
    "eval.extractor",
    "eval.cache",
    "checkpoint.every_kimg",
    "checkpoint.keep",
    "log.every_kimg",
)
NOT_PART_OF_A_RUN = ("resume", "run_dir")


def typed(schema: type, values: Mapping[str, Any], where: str) -> Any:
    """``values`` as an instance of the dataclass ``schema``; UserError with the full option name otherwise."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where}={values}: a group of options is expected, {where}.<option>=…")
    prefix = f"{where}." if where else ""
    names = {f.name: f for f in fields(schema)}
    for name, value in values.items():
        if name not in names:
            raise UserError(f"{prefix}{name}: unknown option, {nearest(name, names)}")
        if value == "???":  # OmegaConf's sign for a value still to come, which it would skip
            raise UserError(f"{prefix}{name}=???: not a value")
        inner = names[name].default_factory if isinstance(names[name].default_factory, type) else None
        if is_dataclass(inner):
            if not isinstance(value, Mapping):
                options = ", ".join(f"{prefix}{name}.{f.name}" for f in fields(inner))
                raise UserError(f"{prefix}{name}={value}: a group of options, {options}")
            typed(inner, value, prefix + name)
    try:
        result = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(values)))
    except OmegaConfBaseException as error:
        raise UserError(_misfit(schema, names, values, prefix)) from error
    except ValueError as error:  # the schema's own checks
        raise UserError(f"{prefix}{error}") from error
    for name in values:
        _check_numbers(prefix + name, getattr(result, name))
    return result


def _misfit(schema: type, names: Mapping[str, Field], values: Mapping[str, Any], prefix: str) -> str:
    """Which of ``values`` OmegaConf does not take, or which one is not there."""
    for name, value in values.items():
        try:
            OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(schema), {name: value}), resolve=True)
        except OmegaConfBaseException:
            wanted = names[name].type
            wanted = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", str(wanted))
            found = f"{value!r}" if isinstance(value, str) else f"{value}"
            return f"{prefix}{name}={found}: wrong type, a value of type {wanted} is expected"
    return f"{prefix}{[name for name in names if name not in values][0]}: not given"


def _check_numbers(name: str, value: Any) -> None:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"{name}={number}: must be a finite number")
        if isinstance(number, int) and abs(number) >= 2**63:
            raise UserError(f"{name}={number}: too large")


def _known(where: str, values: Any, registry: Mapping[str, Any]) -> str:
    name = values.get("name") if isinstance(values, Mapping) else None
    if name not in registry:
        found = name if isinstance(values, Mapping) else values
        raise UserError(f"{where}={found}: unknown {where}, {nearest(str(found), registry)}")
    return name


def _without_leftovers(
    section: str, values: Mapping, allowed: Collection[str], explicit: Collection[str], chosen: bool, left_out: list[str]
) -> dict:
    """Drop what a recipe set for another choice than the user's (``optim=sgd`` on a recipe for Adam)."""
    kept = {}
    for name, value in values.items():
        typed_by_user = any(e == f"{section}.{name}" or e.startswith(f"{section}.{name}.") for e in explicit)
        if name in allowed or isinstance(value, Mapping) or typed_by_user or not chosen:
            kept[name] = value
        else:
            left_out.append(f"{section}.{name}")
    return kept


def build_config(
    values: Mapping[str, Any], explicit: Collection[str] = (), chosen: Collection[str] = ()
) -> tuple[Config, list[str]]:
    """Check plain ``values`` and give (Config, names of recipe values that do not apply and were left out).

    explicit  full names of the options the user typed: these are never left out silently.
    chosen    config groups the user chose himself (``optim=sgd``).
    """
    if not isinstance(values, Mapping):
        raise UserError(f"a mapping of options is expected, found {type(values).__name__}")
    values = dict(values)
    left_out: list[str] = []
    if isinstance(values.get("logger"), str):
        values["logger"] = [name for name in values["logger"].split(",") if name]
    config = typed(Config, {k: v for k, v in values.items() if k not in SECTIONS}, "")

    gan = gans.GANS[_known("gan", values.get("gan"), gans.GANS)]
    config.gan = typed(gan.Options, values["gan"], "gan")
    config.dataset = typed(DatasetOptions, values.get("dataset") or {}, "dataset")
    values["augment"] = values.get("augment") or {"name": "none"}
    for section, registry in (("loss", LOSSES), ("penalty", PENALTIES), ("augment", AUGMENTS)):
        schema = registry[_known(section, values.get(section), registry)]
        allowed = ["name", *(f.name for f in fields(schema))]
        kept = _without_leftovers(section, values[section], allowed, explicit, section in chosen, left_out)
        name = kept.pop("name")
        setattr(config, section, {"name": name, **asdict(typed(schema, kept, section))})

    name = _known("optim", values.get("optim"), OPTIMIZERS)
    optim = _without_leftovers("optim", values["optim"], ["name", *optimizer_fields(name)], explicit, "optim" in chosen, left_out)
    sets = {k: v for k, v in optim.items() if isinstance(v, Mapping) and k not in optimizer_fields(name)}
    config.optim = asdict(typed(OPTIMIZERS[name], {k: v for k, v in optim.items() if k not in sets}, "optim"))
    for set_name, own in sets.items():
        full = typed(OPTIMIZERS[name], own, f"optim.{set_name}")
        if "name" in own:
            raise UserError(f"optim.{set_name}.name: every parameter set uses the same optimizer, optim={name}")
        config.optim[set_name] = {k: getattr(full, k) for k in own}
    for where, own in (("optim", {}), *((f"optim.{set_name}", config.optim[set_name]) for set_name in sets)):
        options = {**config.optim, **own}
        if options.get("nesterov") and not options["momentum"]:
            raise UserError(f"{where}.nesterov=true: needs {where}.momentum above 0")

    config.schedule, schedules = {}, values.get("schedule") or {}
    if not isinstance(schedules, Mapping):
        raise UserError(f"schedule={schedules}: a group of options, schedule.<quantity>.final=… for example")
    for quantity, options in schedules.items():
        if options is None:
            continue
        if not isinstance(options, Mapping):
            raise UserError(f"schedule.{quantity}={options}: a group of options, schedule.{quantity}.final=… for example")
        config.schedule[quantity] = typed(ScheduleOptions, options, f"schedule.{quantity}")
    _check_ranges(config)
    return config, left_out


def _check_ranges(config: Config) -> None:
    def at_least(name: str, value: float | None, low: float) -> None:
        if value is not None and not value >= low:
            raise UserError(f"{name}={value}: must be at least {low:g}")

    if config.precision not in PRECISIONS:
        raise UserError(f"precision={config.precision}: unknown, {nearest(config.precision, PRECISIONS)}")
    config.logger = check_names(config.logger)
    folders = {"run_dir": config.run_dir, "resume": config.resume, "dataset.download_dir": config.dataset.download_dir}
    folders["eval.cache"] = config.eval.cache
    for name, folder in folders.items():
        if folder is not None and not folder.strip():
            raise UserError(f"{name}={folder}: empty; name a folder, or leave it out")
    at_least("batch_size", config.batch_size, 1)
    at_least("micro_batch", config.micro_batch, 1)
    for name in ("total_kimg", "schedule_kimg", "ema_half_life", "augment_strength", "seed"):
        at_least(name, getattr(config, name), 0)
    for group in ("sample", "eval", "checkpoint", "log"):
        at_least(f"{group}.every_kimg", getattr(config, group).every_kimg, 0)
    at_least("sample.rows", config.sample.rows, 1)
    at_least("sample.columns", config.sample.columns, 1)
    at_least("eval.samples", config.eval.samples, 0)
    at_least("checkpoint.keep", config.checkpoint.keep, 1)
    # mistakes of the keyboard that would only end the run, out of memory, at the first picture or evaluation
    if config.sample.rows * config.sample.columns > MAX_GRID:
        rows, columns = config.sample.rows, config.sample.columns
        raise UserError(f"sample.rows={rows} sample.columns={columns}: a grid has at most {MAX_GRID} images")
    if config.eval.samples > MAX_SAMPLES:
        raise UserError(f"eval.samples={config.eval.samples}: at most {MAX_SAMPLES}")
    if config.augment_strength > 1:
        raise UserError(f"augment_strength={config.augment_strength}: a probability, at most 1")
    if config.clip_grad_norm is not None and not config.clip_grad_norm > 0:
        raise UserError(f"clip_grad_norm={config.clip_grad_norm}: must be positive, or null for no clipping")
    if config.log.every_kimg == 0:
        raise UserError("log.every_kimg=0: must be positive")
    for name, schedule in config.schedule.items():
        _check_schedule(f"schedule.{name}", name, schedule, config)


def _check_schedule(where: str, name: str, schedule: ScheduleOptions, config: Config) -> None:
    """A schedule's values are held to its quantity's range, its warm-up and hold to its length."""
    schedule.check(name)
    ends = {"final": [schedule.final], "values": schedule.values}
    if schedule.warmup_kimg:
        ends["warmup_from"] = [schedule.warmup_from]
    for option, values in ends.items():
        for value in [v for v in values if v is not None]:
            if value < 0:
                raise UserError(f"{where}.{option}={value:g}: must be at least 0")
            if name in (*BETAS, "momentum", "alpha") and value >= 1:
                raise UserError(f"{where}.{option}={value:g}: must be below 1")
            if name == "augment_strength" and value > 1:
                raise UserError(f"{where}.{option}={value:g}: a probability, at most 1")
    length = next(k for k in (schedule.kimg, config.schedule_kimg, config.total_kimg) if k is not None)
    if schedule.kind in ("cosine", "linear") and 0 < length <= schedule.warmup_kimg + schedule.hold_kimg:
        raise UserError(f"{where}: warmup_kimg + hold_kimg must be below the schedule's length, {length:g} kimg")


def plain(config: Config) -> dict[str, Any]:
    """The config as plain containers: what config.yaml and checkpoints hold, and what ``build_config`` reads again."""
    values = asdict(config)
    for section in ("loss", "penalty", "augment", "optim"):
        values[section] = dict(getattr(config, section))
    for name in NOT_PART_OF_A_RUN:
        values.pop(name)
    return values


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping of dotted names."""
    if not isinstance(values, Mapping):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


def check_resume(stored: Mapping[str, Any], wanted: Config) -> None:
    """UserError if ``wanted`` differs from the run's stored config in anything that must not change."""
    before, now = flatten(stored), flatten(plain(wanted))
    # what is new last, and there the defaults
    for name in sorted({*before, *now}, key=lambda name: (name not in before, not now.get(name), name)):
        if before.get(name) != now.get(name) and name not in MAY_CHANGE_ON_RESUME:
            raise UserError(
                f"{name}={now.get(name)}: the run was started with {name}={before.get(name)}, and on resume only "
                f"{', '.join(MAY_CHANGE_ON_RESUME)} may change"
            )
