"""The config's schema: what it takes, what it refuses, and what a resumed run may change."""

from __future__ import annotations

import copy
import re

import pytest

from errors import UserError
from training import cli
from training.config import MAY_CHANGE_ON_RESUME, build_config, check_resume, flatten, plain


@pytest.fixture(scope="module")
def base():
    """The default run, composed once."""
    return cli.compose(cli.parse(["total_kimg=24", "schedule.lr.final=5e-5"]))


def put(values: dict, name: str, value) -> dict:
    """A copy of ``values`` with the dotted option set, as the command line would."""
    values = copy.deepcopy(values)
    *path, last = name.split(".")
    inner = values
    for part in path:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return values


NAN, INF, HUGE = float("nan"), float("inf"), 10**30

REFUSED = [
    # unknown options at every level
    ("batchsize", 4, "batchsize: unknown option, did you mean 'batch_size'?"),
    ("gan.widht", 4, "gan.widht: unknown option, did you mean 'width'?"),
    ("dataset.resolutoin", 4, "dataset.resolutoin: unknown option, did you mean 'resolution'?"),
    ("loss.a", 4, "loss.a: unknown option, allowed: form"),
    ("penalty.gama", 4, "penalty.gama: unknown option, did you mean 'gamma'?"),
    ("optim.learning_rate", 4, "optim.learning_rate: unknown option, allowed: beta1"),
    ("optim.discriminator.l", 4, "optim.discriminator.l: unknown option"),
    ("schedule.lr.finale", 4, "schedule.lr.finale: unknown option, did you mean 'final'?"),
    ("sample.row", 4, "sample.row: unknown option, did you mean 'rows'?"),
    ("eval.every_kim", 4, "eval.every_kim: unknown option, did you mean 'every_kimg'?"),
    ("checkpoint.kep", 4, "checkpoint.kep: unknown option, did you mean 'keep'?"),
    ("log.kimg", 4, "log.kimg: unknown option, allowed: every_kimg"),
    # choices
    ("gan.name", "r3gam", "gan=r3gam: unknown gan, did you mean 'r3gan'?"),
    ("gan", None, "gan=None: unknown gan"),
    ("loss.name", "hing", "loss=hing: unknown loss, did you mean 'hinge'?"),
    ("penalty.name", "r3", "penalty=r3: unknown penalty, allowed: dragan, none, r1,"),
    ("augment.name", "adda", "augment=adda: unknown augment, did you mean 'ada'?"),
    ("augment.policy", ["color"], "augment.policy: unknown option, allowed: none"),
    ("optim.name", "adm", "optim=adm: unknown optim, did you mean 'adam'?"),
    ("optim.discriminator", {"name": "sgd"}, "optim.discriminator.name: "),
    ("precision", "fp8", "precision=fp8: unknown, allowed: bf16, fp16, fp32, tf32"),
    ("precision", 16, "precision=16: unknown"),
    ("logger", ["wandbb"], "logger: unknown 'wandbb'"),
    ("logger", "tensorboard,foo", "logger: unknown 'foo'"),
    # wrong types, every section
    ("batch_size", "many", "batch_size='many': wrong type, a value of type int"),
    ("batch_size", 8.5, "batch_size=8.5: wrong type"),
    ("batch_size", True, "batch_size=True: wrong type"),
    ("batch_size", None, "batch_size=None: wrong type"),
    ("batch_size", "", "batch_size='': wrong type"),
    ("total_kimg", "long", "total_kimg='long': wrong type, a value of type float"),
    ("total_kimg", False, "total_kimg=False: wrong type"),
    ("channels_last", "maybe", "channels_last='maybe': wrong type, a value of type bool"),
    ("device", ["cpu"], "device=['cpu']: wrong type"),
    ("logger", {"a": 1}, "logger={'a': 1}: wrong type"),
    ("gan.width", "wide", "gan.width='wide': wrong type"),
    ("gan.conditional", "perhaps", "gan.conditional='perhaps': wrong type"),
    ("dataset.resolution", 1.5, "dataset.resolution=1.5: wrong type"),
    ("dataset.xflip", "sometimes", "dataset.xflip='sometimes': wrong type"),
    ("penalty.gamma", "strong", "penalty.gamma='strong': wrong type"),
    ("optim.lr", "fast", "optim.lr='fast': wrong type"),
    ("optim.lr", {"lr": 1}, "optim.lr={'lr': 1}: wrong type"),
    ("optim.generator.beta1", "b", "optim.generator.beta1='b': wrong type"),
    ("schedule.lr.final", "low", "schedule.lr.final='low': wrong type"),
    ("schedule.lr.at", 5, "schedule.lr.at=5: wrong type"),
    ("sample.rows", 2.5, "sample.rows=2.5: wrong type"),
    ("eval.samples", [1], "eval.samples=[1]: wrong type"),
    ("checkpoint.keep", "all", "checkpoint.keep='all': wrong type"),
    ("log.every_kimg", None, "log.every_kimg=None: wrong type"),
    ("sample", 5, "sample=5: a group of options, sample.every_kimg, sample.rows, sample.columns"),
    ("log", None, "log=None: a group of options"),
    ("dataset", 5, "dataset=5: a group of options"),
    ("schedule", 5, "schedule=5: a group of options"),
    ("schedule.lr", 5, "schedule.lr=5: a group of options"),
    # values that are none
    ("seed", "???", "seed=???: not a value"),
    ("device", "${oc.env:HOME_OF_NOBODY}", "device='${oc.env:HOME_OF_NOBODY}': wrong type"),
    ("run_dir", "", "run_dir=: empty"),
    ("resume", " ", "resume= : empty"),
    ("dataset.download_dir", "", "dataset.download_dir=: empty"),
    # not numbers, and out of range
    ("total_kimg", NAN, "total_kimg=nan: must be a finite number"),
    ("total_kimg", INF, "total_kimg=inf: must be a finite number"),
    ("total_kimg", "nan", "total_kimg=nan: must be a finite number"),
    ("optim.lr", NAN, "optim.lr=nan: must be a finite number"),
    ("optim.generator.lr", -INF, "optim.generator.lr=-inf: must be a finite number"),
    ("penalty.gamma", INF, "penalty.gamma=inf: must be a finite number"),
    ("schedule.lr.final", NAN, "schedule.lr.final=nan: must be a finite number"),
    ("sample.every_kimg", INF, "sample.every_kimg=inf: must be a finite number"),
    ("seed", HUGE, f"seed={HUGE}: too large"),
    ("gan.width", HUGE, f"gan.width={HUGE}: too large"),
    ("batch_size", 0, "batch_size=0: must be at least 1"),
    ("batch_size", -8, "batch_size=-8: must be at least 1"),
    ("micro_batch", 0, "micro_batch=0: must be at least 1"),
    ("seed", -1, "seed=-1: must be at least 0"),
    ("total_kimg", -1, "total_kimg=-1.0: must be at least 0"),
    ("schedule_kimg", -1, "schedule_kimg=-1.0: must be at least 0"),
    ("ema_half_life", -1, "ema_half_life=-1.0: must be at least 0"),
    ("augment_strength", -0.1, "augment_strength=-0.1: must be at least 0"),
    ("augment_strength", 1.1, "augment_strength=1.1: a probability, at most 1"),
    ("clip_grad_norm", 0, "clip_grad_norm=0.0: must be positive"),
    ("sample.rows", 0, "sample.rows=0: must be at least 1"),
    ("sample.columns", 10**7, "sample.columns=10000000: a grid has at most 10000 images"),
    ("sample.every_kimg", -1, "sample.every_kimg=-1.0: must be at least 0"),
    ("eval.samples", -1, "eval.samples=-1: must be at least 0"),
    ("eval.samples", 10**12, "eval.samples=1000000000000: at most 1000000"),
    ("checkpoint.keep", 0, "checkpoint.keep=0: must be at least 1"),
    ("checkpoint.every_kimg", -1, "checkpoint.every_kimg=-1.0: must be at least 0"),
    ("log.every_kimg", 0, "log.every_kimg=0: must be positive"),
    ("penalty.gamma", -1, "penalty.gamma=-1.0 must not be negative"),
    ("penalty.interval", 0, "penalty.interval=0 must be at least 1"),
    ("optim", {"name": "sgd", "nesterov": True}, "optim.nesterov=true: needs optim.momentum above 0"),
    ("optim", {"name": "sgd", "generator": {"nesterov": True}}, "optim.generator.nesterov=true: needs"),
    # schedules
    ("schedule.lr.kind", "cosin", "schedule.lr.kind=cosin: unknown, did you mean 'cosine'?"),
    ("schedule.lr.final", None, "schedule.lr: kind=cosine needs schedule.lr.final=…"),
    ("schedule.lr", {"kind": "constant", "final": 1}, "schedule.lr: kind=constant has no final=1.0"),
    ("schedule.lr", {"kind": "steps"}, "schedule.lr: kind=steps needs rising at="),
    ("schedule.lr", {"kind": "steps", "at": [2, 1], "values": [1, 1]}, "schedule.lr: kind=steps needs rising at="),
    ("schedule.lr", {"kind": "steps", "at": [1, 2], "values": [1]}, "schedule.lr: kind=steps needs rising at="),
    ("schedule.lr", {"kind": "steps", "at": [1], "values": [-1]}, "schedule.lr.values=-1: must be at least 0"),
    ("schedule.lr.at", [1], "schedule.lr: at and values belong to kind=steps"),
    ("schedule.lr.kimg", -1, "schedule.lr: warmup_kimg, hold_kimg and kimg must not be negative"),
    ("schedule.lr.hold_kimg", -1, "schedule.lr: warmup_kimg, hold_kimg and kimg must not be negative"),
    ("schedule.lr.warmup_kimg", 24, "schedule.lr: warmup_kimg + hold_kimg must be below the schedule's length, 24 kimg"),
    ("schedule.lr.hold_kimg", 99, "schedule.lr: warmup_kimg + hold_kimg must be below the schedule's length"),
    ("schedule.lr", {"final": 1, "kimg": 5, "hold_kimg": 5}, "schedule.lr: warmup_kimg + hold_kimg must be below kimg=5"),
    ("schedule.lr", {"final": 1, "warmup_kimg": 1, "warmup_from": -1}, "schedule.lr.warmup_from=-1: must be at least 0"),
    ("schedule.lr.final", -1, "schedule.lr.final=-1: must be at least 0"),
    ("schedule.beta2.final", 1, "schedule.beta2.final=1: must be below 1"),
    ("schedule.augment_strength", {"final": 1.5}, "schedule.augment_strength.final=1.5: a probability"),
]  # fmt: skip


@pytest.mark.parametrize("name, value, message", REFUSED, ids=[f"{name}={value!r:.30}" for name, value, _ in REFUSED])
def test_refused_in_one_line(base, name, value, message):
    with pytest.raises(UserError) as caught:
        build_config(put(base, name, value))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_survives_its_plain_form(base):
    values = put(put(base, "optim.discriminator", {"lr": 1e-4}), "schedule.batch_size", {"final": 128, "kind": "linear"})
    config, left_out = build_config(values)
    assert left_out == []
    stored = plain(config)
    again, _ = build_config(stored)
    assert again == config and plain(again) == stored
    assert stored["optim"]["discriminator"] == {"lr": 1e-4} and stored["schedule"]["batch_size"]["final"] == 128.0
    assert "run_dir" not in stored and "resume" not in stored


def test_forms_that_mean_the_same(base):
    config, _ = build_config(put(put(put(base, "logger", "tensorboard"), "total_kimg", 3), "optim.lr", "1e-3"))
    assert config.logger == ["tensorboard"] and config.total_kimg == 3.0 and config.optim["lr"] == 1e-3
    assert build_config(put(base, "logger", "none"))[0].logger == []
    assert build_config(put(base, "logger", ""))[0].logger == []
    assert "gamma" not in build_config(put(base, "schedule.gamma", None))[0].schedule
    assert build_config(put(base, "schedule", None))[0].schedule == {}


def test_values_of_another_choice_are_left_out_unless_typed(base):
    values = put(base, "optim", {"name": "sgd", "lr": 0.1, "beta1": 0.0, "beta2": 0.9})
    config, left_out = build_config(values, chosen=["optim"])
    assert left_out == ["optim.beta1", "optim.beta2"] and config.optim["lr"] == 0.1 and "beta1" not in config.optim
    with pytest.raises(UserError, match="optim.beta1: unknown option"):
        build_config(values, explicit=["optim.beta1"], chosen=["optim"])
    with pytest.raises(UserError, match="optim.beta1: unknown option"):
        build_config(values, chosen=["loss"])  # nobody chose another optimizer: a stray option is a mistake
    values = put(base, "penalty", {"name": "none", "gamma": 0.5, "interval": 1})
    assert build_config(values, chosen=["penalty"])[1] == ["penalty.gamma", "penalty.interval"]


CHANGES = {
    "gan.width": 24, "augment.name": "diffaugment", "gan.conditional": True, "dataset.name": "zip", "dataset.path": "x.zip",
    "dataset.resolution": 32, "dataset.pad_to": 32, "dataset.xflip": True, "dataset.download_dir": "elsewhere",
    "gan.weight_clip": 0.01, "gan.instance_noise": 0.1, "gan.feature_distance": "l1", "gan.discriminator_steps": 2,
    "loss.name": "relativistic_average", "loss.form": "hinge", "penalty.gamma": 0.123, "penalty.interval": 4,
    "optim.lr": 0.123, "optim.beta1": 0.5,
    "optim.generator": {"lr": 0.001}, "schedule.lr.final": 1e-06, "schedule.lr.kind": "linear", "schedule.gamma": None,
    "schedule.weight_decay": {"final": 0.1}, "schedule_kimg": 7.0, "batch_size": 33, "seed": 1, "precision": "bf16",
    "channels_last": False, "deterministic": True, "clip_grad_norm": 1.0, "ema_half_life": 1.0, "augment_strength": 0.5,
    "sample.rows": 3, "sample.columns": 3, "eval.samples": 5,
}  # fmt: skip
MAY_CHANGE = {
    "total_kimg": 48.0, "micro_batch": 16, "device": "cpu", "logger": ["tensorboard"], "dataset.workers": 0,
    "dataset.cache": "elsewhere", "dataset.memory_gb": 1.0, "dataset.on_error": "skip",
    "sample.every_kimg": 1.0, "eval.every_kimg": 1.0, "checkpoint.every_kimg": 1.0, "checkpoint.keep": 9, "log.every_kimg": 3.0,
    "eval.metric": "none", "eval.extractor": "digits", "eval.cache": "elsewhere",
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_resumed_run_refuses_a_changed_option_by_name(base, name):
    stored = plain(build_config(put(base, "schedule_kimg", 24.0))[0])
    config, _ = build_config(put(stored, name, CHANGES[name]))
    with pytest.raises(UserError, match=rf"^{re.escape(name)}[\w.]*=.*: the run was started with .* may change$"):
        check_resume(stored, config)


@pytest.mark.parametrize("name", MAY_CHANGE)
def test_a_resumed_run_may_change(base, name):
    stored = plain(build_config(base)[0])
    check_resume(stored, build_config(put(stored, name, MAY_CHANGE[name]))[0])


def test_every_option_is_in_one_of_the_two_lists(base):
    """An option added later must be put on one side deliberately."""
    assert set(MAY_CHANGE) == set(MAY_CHANGE_ON_RESUME)
    options = set(flatten(plain(build_config(base)[0])))
    known = {*CHANGES, *MAY_CHANGE}
    rest = {o for o in options - known if not o.startswith("schedule.")}
    assert rest == {"gan.name", "gan.cardinality", "gan.blocks", "gan.expansion", "gan.z_dim", "gan.embedding_dim",
                    "gan.full_width_stages", "gan.low_precision_stages_g", "gan.low_precision_stages_d",
                    "gan.adversarial_weight", "gan.feature_matching", "gan.generator_batch_scale", "gan.discriminator",
                    "gan.patch_field", "gan.patch_loss", "gan.patch_width", "penalty.name",
                    "optim.name", "optim.beta2", "optim.eps", "optim.weight_decay"}  # fmt: skip
    stored = plain(build_config(base)[0])
    check_resume(stored, build_config(stored)[0])
