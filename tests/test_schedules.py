"""Schedules against golden numbers from an independent public implementation, and their rules."""

import json
import math
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from errors import UserError
from gans.base import Clock
from training.schedules import ScheduleOptions, Schedules, evaluate

GOLDEN = Path(__file__).parent / "golden" / "r3gan_schedules.safetensors"


def golden():
    with safe_open(GOLDEN, "pt") as file:
        return load_file(GOLDEN), json.loads(file.metadata()["config"])


@pytest.mark.parametrize("name", ["lr", "gamma", "beta2", "ema_nimg", "aug_p", "warmup_example"])
def test_golden_schedules(name):
    """Ours are in thousands of images, theirs in images; values agree to 1e-10."""
    tensors, config = golden()
    theirs = config[name]
    options = ScheduleOptions(
        final=theirs["final_value"],
        kimg=theirs["total_nimg"] / 1000,
        warmup_kimg=theirs.get("warmup_nimg", 0) / 1000,
        warmup_from=theirs.get("warmup_value", 0.0),
        hold_kimg=theirs.get("hold_base_value_nimg", 0) / 1000,
    )
    schedules = Schedules({name: theirs["base_value"]}, {name: options}, schedule_kimg=1.0)
    images = tensors["in.warmup_nimg" if name == "warmup_example" else "in.nimg"].tolist()
    assert len(images) > 10 and min(images) == 0 and max(images) > theirs["total_nimg"]
    for seen, expected in zip(images, tensors[f"out.{name}"].tolist(), strict=True):
        assert seen == int(seen)
        found = schedules.at(Clock(step=0, images_seen=int(seen)))[name]
        assert abs(found - expected) <= 1e-10 * max(abs(theirs["base_value"]), abs(theirs["final_value"]), 1e-300), seen


def test_length_defaults_to_schedule_kimg():
    options = ScheduleOptions(kind="linear", final=0.0)
    assert [evaluate(options, 1.0, kimg, schedule_kimg=10.0) for kimg in (0, 5, 10, 20)] == [1.0, 0.5, 0.0, 0.0]
    options.kimg = 4.0
    assert [evaluate(options, 1.0, kimg, schedule_kimg=10.0) for kimg in (0, 1, 4, 5)] == [1.0, 0.75, 0.0, 0.0]


def test_warmup_and_hold_come_before_the_descent():
    options = ScheduleOptions(kind="linear", final=0.0, kimg=10.0, warmup_kimg=2.0, warmup_from=0.5, hold_kimg=4.0)
    assert [evaluate(options, 1.0, k, 99.0) for k in (0, 1, 2, 4, 6, 8, 10)] == [0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.0]


def test_cosine_is_half_way_down_in_the_middle():
    options = ScheduleOptions(final=0.0, kimg=8.0)
    assert evaluate(options, 1.0, 4.0, 99.0) == pytest.approx(0.5, abs=1e-12)
    assert evaluate(options, 1.0, 2.0, 99.0) == pytest.approx((1 + math.sqrt(0.5)) / 2, abs=1e-12)


def test_steps_and_constant():
    options = ScheduleOptions(kind="steps", at=[1.0, 2.5], values=[7.0, 9.0])
    assert [evaluate(options, 3.0, k, 99.0) for k in (0, 0.999, 1.0, 2.4, 2.5, 50)] == [3.0, 3.0, 7.0, 7.0, 9.0, 9.0]
    assert evaluate(ScheduleOptions(kind="constant", warmup_kimg=2.0), 3.0, 1.0, 99.0) == 1.5
    assert evaluate(ScheduleOptions(kind="constant", warmup_kimg=2.0), 3.0, 5.0, 99.0) == 3.0


def test_a_model_may_give_a_function_of_the_clock():
    schedules = Schedules({"alpha": lambda clock: clock.step / 2, "lr": 0.1}, {}, schedule_kimg=1.0)
    assert schedules.at(Clock(step=3, images_seen=5)) == {"alpha": 1.5, "lr": 0.1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cosin", "final": 1.0}, "schedule.lr.kind=cosin: unknown, did you mean 'cosine'?"),
        ({}, "schedule.lr: kind=cosine needs schedule.lr.final"),
        ({"kind": "steps", "at": [2.0, 1.0], "values": [1.0, 2.0]}, "schedule.lr: kind=steps needs rising at="),
        ({"final": 1.0, "kimg": 3.0, "warmup_kimg": 1.0, "hold_kimg": 2.0}, "warmup_kimg + hold_kimg must be below kimg=3.0"),
        ({"kind": "constant", "final": 1.0}, "kind=constant has no final=1.0"),
        ({"final": 1.0, "at": [1.0]}, "at and values belong to kind=steps"),
    ],
)
def test_options_that_do_not_fit_each_other(options, message):
    with pytest.raises(UserError) as error:
        Schedules({"lr": 0.1}, {"lr": ScheduleOptions(**options)}, schedule_kimg=1.0)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_schedule_of_nothing_is_refused():
    with pytest.raises(UserError, match="schedule.gama: nothing here has that name, did you mean 'gamma'?"):
        Schedules({"lr": 0.1, "gamma": 1.0}, {"gama": ScheduleOptions(final=1.0)}, schedule_kimg=1.0)
