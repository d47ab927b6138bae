"""train.py from the outside: help, sweeps, what a run leaves, choices that fit each other, signals, going on."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass
from pathlib import Path

import command
import pytest
import torch
import yaml
from command import script, tree

from errors import UserError
from training import cli
from training.config import Config, build_config, flatten, plain
from training.engine import Engine


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    """No curves: half a second that most tests need not pay."""
    monkeypatch.setattr("training.trainer.plot_losses", lambda lines, path: path.touch())


def jobs(*words):
    """(exit status, the configs with which train.py would run)."""
    ran = []

    def job(values, arguments):
        ran.append(build_config(values, arguments.explicit, arguments.chosen)[0])

    return cli.main(job, list(words)), ran


# help and config ------------------------------------------------------------------------------------------------------------


def test_help_names_every_group_choice_and_option(here, capsys):
    assert cli.main(None, ["--help"]) == 0
    text, error = capsys.readouterr()
    assert error == "" and tree(here) == []
    for group, choices in cli.groups().items():
        assert re.search(rf"^  {group} +{', '.join(choices)}$", re.sub(r",\n {11}", ", ", text), re.M)
    config, _ = build_config(cli.compose(cli.parse([])))
    for name in flatten(plain(config)):
        assert re.search(rf"^ +{name.split('.')[-1]}:", text, re.M), name
    for schema in [Config, *(f.default_factory for f in fields(Config) if is_dataclass(f.default_factory))]:
        for option in fields(schema):
            assert option.name in text
    for word in ("resume=", "-m", "--cfg job", "run_dir", "schedule.<quantity>", "warmup_kimg"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 140


def test_help_shows_the_values_of_the_choices_typed(capsys):
    assert cli.main(None, ["gan=r3gan", "dataset=cifar10", "-h", "seed=7"]) == 0
    text = capsys.readouterr().out
    assert "width: 768" in text and "batch_size: 512" in text and "seed: 7" in text
    assert cli.main(None, ["--help", "seed=x"]) == 2


@pytest.mark.parametrize("flag", [["--cfg", "job"], ["--cfg=job"], ["-c", "job"]])
def test_cfg_prints_the_config_that_a_run_would_save(here, capsys, flag):
    assert cli.main(None, [*flag, "optim=sgd", "seed=3", "run_dir=x"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert (values["seed"], values["optim"]["name"], values["run_dir"]) == (3, "sgd", "x") and "beta1" not in values["optim"]
    assert plain(build_config(values)[0]) == {k: v for k, v in values.items() if k not in ("run_dir", "resume")}
    assert tree(here) == []
    assert cli.main(None, [*flag, "foo=1"]) == 2


# sweeps ---------------------------------------------------------------------------------------------------------------------


def test_a_sweep_runs_every_combination(here, capsys):
    status, ran = jobs("-m", "seed=0,1,2", "loss=hinge,relativistic", "optim.lr=0.1")
    assert status == 0 and tree(here) == []
    assert [(c.seed, c.loss["name"]) for c in ran] == [(s, loss) for s in (0, 1, 2) for loss in ("hinge", "relativistic")]
    assert all(c.optim["lr"] == 0.1 for c in ran)
    assert "run 6 of 6: seed=2 loss=relativistic optim.lr=0.1" in capsys.readouterr().out
    _, ran = jobs("--multirun", "seed=range(1,4)", "optim.lr=choice(0.1,0.2)", "logger=wandb,tensorboard", "device=cpu")
    assert [(c.seed, c.optim["lr"]) for c in ran] == [(s, lr) for s in (1, 2, 3) for lr in (0.1, 0.2)]
    assert all(c.logger == ["wandb", "tensorboard"] for c in ran)
    _, ran = jobs(
        "-m", "dataset.path=a b.zip,it's.zip", "run_dir='r-${dataset.path}'", "dataset=zip", "schedule.lr={final:0,kimg:5}"
    )
    assert [(c.dataset.path, c.run_dir) for c in ran] == [("a b.zip", "r-a b.zip"), ("it's.zip", "r-it's.zip")]
    assert ran[0].schedule["lr"].kimg == 5.0
    _, ran = jobs("-m", "dataset.path='a,b.zip'", "dataset=zip")
    assert [c.dataset.path for c in ran] == ["a,b.zip"]


def test_a_sweep_goes_on_after_a_failure_but_not_after_a_signal(capsys):
    seen = []

    def job(values, arguments):
        seen.append(values["seed"])
        if values["seed"] == 1:
            raise UserError("no such luck")
        return {2: 1, 4: 143}.get(values["seed"])

    assert cli.main(job, ["-m", "seed=0,1,2,3"]) == 2 and seen == [0, 1, 2, 3]
    assert capsys.readouterr().err == "error: no such luck\n"
    assert cli.main(job, ["-m", "seed=3,4,5"]) == 143 and seen[4:] == [3, 4]


def test_each_run_of_a_sweep_has_its_own_folder(here, capsys, quick):
    assert command.train("-m", "seed=0,1") == 0
    assert sorted(p.name for p in here.iterdir()) == ["runs"]
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["r3gan-digits-0", "r3gan-digits-1"]
    for seed in (0, 1):
        assert yaml.safe_load((here / f"runs/r3gan-digits-{seed}/config.yaml").read_text())["seed"] == seed


@pytest.mark.parametrize("words, forms", [
    (["gan=dcgan,wgan", "penalty=none,r1", "run_dir=swp-${seed}"], ["${gan.name}", "${penalty.name}"]),
    (["seed=0,1", "optim.lr=1e-3,1e-4", "run_dir=x-${seed}"], ["${seed}", "${optim.lr}"]),
])  # fmt: skip
def test_runs_that_would_share_a_folder_are_told_how_not_to(here, capsys, words, forms):
    assert jobs("-m", *words) == (2, [])
    error, hint = command.the_error(capsys), f"run_dir='x-{'-'.join(forms)}'"
    assert error.endswith(f"cannot share it; leave it out, or write {hint}")
    assert " 2 runs cannot" in error if words[-1] == "run_dir=x-${seed}" else " 4 runs cannot" in error
    status, ran = jobs("-m", *words[:-1], hint.replace("'", ""))  # as the shell hands it on
    assert status == 0 and len({config.run_dir for config in ran}) == len(ran) == 4


def test_no_hint_that_does_not_work(here, capsys):
    for words in (["augment=ada,r3gan"], ["gan=r3gan", "recipe=null,r3gan-digits"], ["seed=0,0"]):
        assert jobs("-m", *words, "run_dir=x") == (2, [])
        assert command.the_error(capsys) == "error: run_dir=x: 2 runs cannot share it; leave it out"
    assert jobs("-m", "resume=x", "total_kimg=1,2") == (2, [])
    assert command.the_error(capsys) == "error: resume=x: 2 runs cannot share it; sweep over resume=A,B,… and nothing else"


@pytest.mark.parametrize("words, found", [
    (["gan=dcgan", "recipe=r3gan-cifar10"], ("r3gan-cifar10", "r3gan", "dcgan")),
    (["recipe=wgan_gp-cifar10", "gan=wgan"], ("wgan_gp-cifar10", "wgan_gp", "wgan")),
    (["recipe=vanilla-ring"], ("vanilla-ring", "vanilla", "r3gan")),
])  # fmt: skip
def test_a_recipe_of_another_model_is_refused(capsys, words, found):
    for more in ([], ["--cfg", "job"], ["-m", "seed=0,1"], ["--help"]):
        assert jobs(*more, *words) == (2, [])
        assert command.the_error(capsys) == "error: recipe={}: is for gan={}, found gan={}".format(*found)


def test_a_recipe_for_other_data_is_not(capsys):
    status, ran = jobs("gan=dcgan", "dataset=fashion_mnist", "recipe=dcgan-digits")
    assert status == 0 and ran[0].dataset.name == "fashion_mnist" and ran[0].batch_size == 32
    assert jobs("gan=dcgan", "recipe=null")[0] == 0
    cli.main(lambda values, arguments: 0, ["resume=x", "recipe=dcgan-digits"])  # whose model is in its own config
    assert capsys.readouterr().err == ""


def test_a_place_is_tried_and_left_as_it_was(here):
    (here / "file").touch()
    (here / "there").mkdir()
    before = tree(here)
    for place in ("x.json", "there/x.json", "a/b/c/x.json", "file", "there/", "a/b/c/", "./"):
        cli.check_writable("out", Path(place), folder=place.endswith("/"))
    for place, folder in (("file/x.json", False), ("file/x", True), ("file", True), ("there", False), (300 * "x", False)):
        with pytest.raises(UserError, match=f"^out={place}: cannot write there \\(.*\\)$"):
            cli.check_writable("out", Path(place), folder)
    assert tree(here) == before


# what a run leaves ----------------------------------------------------------------------------------------------------------


def test_what_a_run_leaves(here, capsys):
    assert command.train("total_kimg=0.024", "run_dir=new/run", "checkpoint.every_kimg=0.008", "checkpoint.keep=2") == 0
    files = [
        "", "/checkpoints", "/checkpoints/kimg00000.016.pt", "/checkpoints/kimg00000.024.pt", "/checkpoints/latest.pt",
        "/config.yaml", "/log.jsonl", "/loss.png", "/samples", "/samples/kimg00000.024.png", "/samples/kimg00000.png",
    ]  # fmt: skip
    assert tree(here) == ["new", *(f"new/run{name}" for name in files)]
    out, err = capsys.readouterr()
    for word in (
        "r3gan on digits (1,797 images, 16 px, 1 channel, 10 classes)", "run folder: new/run", "done: 0.024 kimg in 3 steps",
        "new/run/samples/kimg00000.024.png", "new/run/loss.png", "python sample.py checkpoint=new/run",
    ):  # fmt: skip
        assert word in out
    assert "0.024/0.024 kimg (100%)" in err and "Traceback" not in err and "Warning" not in err
    values = yaml.safe_load((here / "new/run/config.yaml").read_text())
    state = torch.load(here / "new/run/checkpoints/latest.pt", weights_only=True)
    assert values == state["config"] and values["schedule_kimg"] == 0.024 and values["gan"]["width"] == 8


def test_the_log_says_what_one_needs(here, quick):
    assert command.train("total_kimg=0.024", "run_dir=run", "clip_grad_norm=5") == 0
    lines = command.log(here / "run")
    assert [line["step"] for line in lines] == [1, 2, 3] and [line["kimg"] for line in lines] == [0.008, 0.016, 0.024]
    wanted = {
        "step", "images_seen", "kimg", "sec_per_kimg", "images_per_sec", "memory_gb",
        "discriminator/loss", "discriminator/loss_adversarial", "discriminator/loss_r1", "discriminator/loss_r2",
        "discriminator/r1", "discriminator/r2", "discriminator/logits_real", "discriminator/logits_fake",
        "discriminator/sign_real", "discriminator/real_above_fake", "discriminator/grad_norm", "discriminator/skipped",
        "generator/loss", "generator/loss_adversarial", "generator/grad_norm", "generator/skipped",
        "value/lr", "value/beta1", "value/beta2", "value/gamma", "value/batch_size", "value/ema_half_life",
    }  # fmt: skip
    for line in lines:
        assert wanted <= set(line)
        assert all(isinstance(value, int | float) and math.isfinite(value) for value in line.values())
        assert 0 <= line["discriminator/sign_real"] <= 1 and 0 <= line["discriminator/real_above_fake"] <= 1
        assert line["discriminator/skipped"] == 0 and line["memory_gb"] > 0
        assert line["sec_per_kimg"] == pytest.approx(1000 / line["images_per_sec"])
        terms = sum(line[f"discriminator/loss_{term}"] for term in ("adversarial", "r1", "r2"))
        assert line["discriminator/loss"] == pytest.approx(terms, abs=1e-6)


def test_the_best_checkpoint_of_an_evaluated_run(here, capsys, quick):
    options = ("eval.samples=20", "eval.every_kimg=0.008", "total_kimg=0.016", "run_dir=run", "gan.embedding_dim=8")
    assert command.train(*options) == 0
    assert "run/checkpoints/best.pt" in tree(here)
    assert [p for p in tree(here) if p.split("/")[0] != "run"] == []
    measured = [line["eval/recognised"] for line in command.log(here / "run") if "eval/recognised" in line]
    assert len(measured) == 2 and all(0 <= value <= 1 for value in measured)
    assert "eval/recognised" in capsys.readouterr().out


def test_choices_leave_out_what_recipes_say_for_others(here, capsys, quick):
    for options, left_out in (
        (["optim=sgd"], "optim.beta1, optim.beta2, schedule.beta2"),
        (["penalty=none"], "penalty.gamma, schedule.gamma"),
        (["penalty=wgan_gp", "loss=wasserstein"], "penalty.gamma, schedule.gamma"),
        (["loss=hinge", "gan=r3gan"], None),
        (["penalty=r1", "loss=hinge"], None),
    ):
        assert command.train(*options) == 0
        out = capsys.readouterr().out
        lines = [line for line in out.splitlines() if line.startswith("left out")]
        assert lines == ([f"left out, since the chosen parts have no such options: {left_out}"] if left_out else [])


# going on -------------------------------------------------------------------------------------------------------------------


def weights(folder):
    return torch.load(folder / "checkpoints" / "latest.pt", weights_only=True)


def assert_same(one, two):
    """The same weights, averages and moments, to the bit."""
    for part in ("gan", "ema", "optimizers", "clock"):
        a, b = (flatten(json_like(state[part])) for state in (one, two))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a), part


def json_like(value):
    if isinstance(value, dict):
        return {str(k): json_like(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return {str(i): json_like(v) for i, v in enumerate(value)}
    return value


def test_a_resumed_run_equals_one_that_never_stopped(here, capsys, quick):
    """... with everything changed on the way that may change."""
    from training.main import train

    assert command.train("run_dir=whole", "total_kimg=0.032", "schedule_kimg=0.05") == 0
    assert command.train("run_dir=parts", "total_kimg=0.016", "schedule_kimg=0.05") == 0
    changes = ["total_kimg=0.032", "micro_batch=64", "device=cpu", "logger=none", "dataset.workers=0", "sample.every_kimg=0.008",
               "eval.every_kimg=1", "checkpoint.every_kimg=0.008", "checkpoint.keep=1", "log.every_kimg=0.016"]  # fmt: skip
    assert cli.main(train, ["resume=parts", "run_dir=parts", *changes]) == 0
    assert "run folder: parts, resumed at 0.016 kimg" in capsys.readouterr().out
    assert_same(weights(here / "whole"), weights(here / "parts"))
    stored = yaml.safe_load((here / "parts/config.yaml").read_text())
    assert stored["total_kimg"] == 0.032 and stored["schedule_kimg"] == 0.05 and stored["checkpoint"]["keep"] == 1
    assert [line["step"] for line in command.log(here / "parts")] == [1, 2, 4]
    assert cli.main(train, ["resume=parts/checkpoints/latest.pt"]) == 0  # nothing left to do
    assert_same(weights(here / "whole"), weights(here / "parts"))


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(here, capsys, monkeypatch, quick, number, status):
    from training.main import train

    step, handlers = Engine.step, (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))

    def interrupted(engine):
        if engine.clock.step == 1:
            os.kill(os.getpid(), number)
        step(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", interrupted)
        assert command.train("run_dir=run", "total_kimg=0.04", "logger=tensorboard") == status
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    err = capsys.readouterr().err
    assert (
        f"stopped at 0.016 kimg by signal {int(number)}; go on with: python train.py resume=run" in err and "Traceback" not in err
    )
    assert weights(here / "run")["clock"] == {"step": 2, "images_seen": 16}
    assert cli.main(train, ["resume=run", "logger=none"]) == 0
    assert command.train("run_dir=whole", "total_kimg=0.04") == 0
    assert_same(weights(here / "whole"), weights(here / "run"))
    assert [line["step"] for line in command.log(here / "run")] == [1, 2, 3, 4, 5]


def test_ctrl_c_before_the_first_step_is_no_traceback(capsys):
    def job(values, arguments):
        raise KeyboardInterrupt

    assert cli.main(job, []) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_running_out_of_memory_is_one_line(capsys):
    for error, status in ((torch.OutOfMemoryError("CUDA out of memory.\nTried to …"), 1), (MemoryError(), 1)):

        def job(values, arguments, error=error):
            raise error

        assert cli.main(job, []) == status
        err = capsys.readouterr().err
        assert err.startswith("error: out of memory; set micro_batch") and err.count("\n") == 1
    with pytest.raises(RuntimeError, match="a bug"):
        cli.guard(lambda: (_ for _ in ()).throw(RuntimeError("a bug")))


# in processes of their own --------------------------------------------------------------------------------------------------


def test_from_another_folder(here):
    """Relative paths are relative to where the command is given, which stays clean."""
    done = script("train.py", *command.with_tiny(("run_dir=mine",)), cwd=here)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in here.iterdir()] == ["mine"] and (here / "mine" / "loss.png").stat().st_size > 1000
    done = script("sample.py", "checkpoint=mine", "n=4", "device=cpu", cwd=here)
    assert done.returncode == 0 and sorted(p.name for p in here.iterdir()) == ["mine", "sample.png"]


@pytest.mark.slow
def test_help_and_sweeps_in_a_process(here):
    done = script("train.py", "--help", cwd=here)
    assert done.returncode == 0 and "Groups and their choices" in done.stdout and done.stderr == ""
    done = script("sample.py", "--help", cwd=here)
    assert done.returncode == 0 and "checkpoint" in done.stdout and "batch_size" in done.stdout and tree(here) == []
    done = script("train.py", "-m", "batch_size=8,5000", *[o for o in command.TINY if "batch_size" not in o], cwd=here)
    assert done.returncode == 2 and "dataset has 1797 images, batch_size=5000" in done.stderr
    assert [p.name for p in (here / "runs").iterdir()] == ["r3gan-digits-0"] and [p.name for p in here.iterdir()] == ["runs"]


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_to_a_process(here, number, status):
    words = command.with_tiny(("run_dir=run", "total_kimg=1000"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(here / "out", "w") as out:
        command_line = [sys.executable, str(command.ROOT / "train.py"), *words]
        process = subprocess.Popen(command_line, cwd=here, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            began = time.monotonic()
            while not (here / "run/log.jsonl").exists() or (here / "run/log.jsonl").read_text().count("\n") < 3:
                assert process.poll() is None and time.monotonic() - began < 200, (here / "out").read_text()
                time.sleep(0.1)
            process.send_signal(number)
            assert process.wait(120) == status
        finally:
            process.kill()
    said = (here / "out").read_text()
    assert "go on with: python train.py resume=run" in said and "Traceback" not in said
    state = weights(here / "run")
    assert state["clock"]["step"] >= 3
    assert state["clock"]["step"] == json.loads((here / "run/log.jsonl").read_text().splitlines()[-1])["step"]


@pytest.mark.slow
def test_loggers_add_their_files_and_never_stop_a_run(here, capsys, monkeypatch, quick):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(here / "nobody"))
    assert command.train("logger=wandb,tensorboard", "run_dir=run") == 0
    assert list((here / "run/tensorboard").glob("events*")) and list((here / "run/wandb").glob("offline-run-*"))
    assert "not logged in, recording offline" in capsys.readouterr().out
    assert {p.name for p in here.iterdir()} <= {"run", "nobody"}

    def broken(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", broken)
    assert command.train("logger=tensorboard", "run_dir=broken") == 0
    assert "logger tensorboard failed and is dropped; the run goes on" in capsys.readouterr().out
