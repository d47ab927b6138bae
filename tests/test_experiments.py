"""Experiments: sweeps are made once, an interrupted run goes on, reports need no training, and the measures are what they say."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from experiments import checkerboard, common, modes, shortcut, show, stacked, zoo
from training import cli
from training.config import build_config

ALL = {module.EXPERIMENT.name: module.EXPERIMENT for module in (modes, stacked, checkerboard, shortcut, zoo)}
TINY = ("kimg=0.512", "seeds=0", "only=ring,lsgan,r1", "runs=runs")
HOME = Path("runs") / "modes-0.512kimg"
RUN = HOME / "ring-lsgan-r1-0"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_sweep_is_trained_measured_and_reported_once(capsys, monkeypatch):
    assert common.main(modes.EXPERIMENT, TINY) == 0
    said = capsys.readouterr().out
    assert "modes: 1 runs, 0 of them finished" in said and "| ring | lsgan | r1 | " in said
    assert [path.name for path in HOME.iterdir() if path.is_dir()] == [RUN.name]
    results = json.loads((HOME / "modes.json").read_text())
    assert (results["runs_finished"], results["runs_of_all"], results["threads"]) == (1, 36, [torch.get_num_threads()])
    assert results["protocol"]["samples"] == modes.SAMPLES and all("train.py -m" in sweep for sweep in results["sweeps"])
    run = results["runs"][0]
    assert (run["dataset"], run["penalty"], run["kimg"], run["steps"]) == ("ring", "r1", 0.512, 2)
    assert len(run["values"]["points"]) == 2 * modes.SHOWN
    scores = json.loads((HOME / f"{RUN.name}-scores.json").read_text())["results"][0]
    measured = {name: pytest.approx(value, rel=1e-5) for name, value in scores["scores"][0]["values"].items()}
    assert run["values"] == {**measured, "points": run["values"]["points"]} and scores["of"]["count"] == modes.SAMPLES

    def no_more(*_):
        raise AssertionError("trained or measured again")

    monkeypatch.setattr(common, "job", no_more)
    monkeypatch.setattr(common, "measure", no_more)
    picture = HOME / "modes-ring.png"
    picture.unlink()
    assert common.main(modes.EXPERIMENT, TINY) == 0  # all are finished
    picture.unlink()
    capsys.readouterr()
    assert common.main(modes.EXPERIMENT, [*TINY, "report=true"]) == 0
    assert picture.exists() and "| ring | lsgan | r1 | " in capsys.readouterr().out


def test_an_interrupted_run_goes_on_where_it_stopped(capsys, monkeypatch):
    job = common.job

    def stopped(values, arguments):
        """As if Ctrl-C came in the first step."""
        from training.engine import Engine

        step = Engine.step

        def once(self):
            step(self)
            os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "step", once)
            return job(values, arguments)

    monkeypatch.setattr(common, "job", stopped)
    assert common.main(modes.EXPERIMENT, TINY) == 130
    assert "the same command goes on" in capsys.readouterr().out
    assert common.clock(RUN) == {"kimg": 0.256, "steps": 1}
    assert json.loads((HOME / "modes.json").read_text())["runs"] == []
    resumed = []
    monkeypatch.setattr(common, "job", lambda values, arguments: resumed.append(values["resume"]) or job(values, arguments))
    assert common.main(modes.EXPERIMENT, TINY) == 0
    assert resumed == [str(RUN)] and common.clock(RUN) == {"kimg": 0.512, "steps": 2}


def test_a_run_that_diverges_is_a_result_and_any_other_failure_an_error(capsys, monkeypatch):
    job = common.job

    def diverges(values, arguments):
        values["optim"]["lr"] = 1e30
        return job(values, arguments)

    def fails(values, arguments):
        print("error: disk: No space left on device", file=sys.stderr)
        return 1

    monkeypatch.setattr(common, "job", fails)
    assert common.main(modes.EXPERIMENT, TINY) == 2
    assert capsys.readouterr().err == f"error: {RUN.name}: disk: No space left on device\n"
    monkeypatch.setattr(common, "job", diverges)
    assert common.main(modes.EXPERIMENT, ["kimg=2.048", *TINY[1:]]) == 0
    assert "| ring | lsgan | r1 | - of 8 | - | - | 1 (1 diverged) |" in capsys.readouterr().out


def test_runs_of_other_options_are_refused(capsys):
    HOME.mkdir(parents=True)
    (HOME / f"{RUN.name}.json").write_text(json.dumps({"words": ["loss=hinge"], "cpu_seconds": 1.0}))
    assert common.main(modes.EXPERIMENT, TINY) == 2
    assert "made with other options" in capsys.readouterr().err


@pytest.mark.parametrize("text, part", [
    ("", "damaged, not JSON"),
    ('{"words": ["a"', "damaged, not JSON"),
    ("\\xff", "damaged, not JSON"),
    ("[]", "without words"),
    ("{}", "without words"),
    ('{"words": []}', "without cpu_seconds"),
    ('{"words": [], "cpu_seconds": 1, "values": 3}', "without values"),
    ('{"words": [], "cpu_seconds": 1, "values": {}}', "without threads"),
    ('{"words": [[]], "cpu_seconds": 1}', "made with other options"),
])  # fmt: skip
def test_a_damaged_record_is_named(text, part, capsys):
    HOME.mkdir(parents=True)
    (HOME / f"{RUN.name}.json").write_bytes(text.replace("\\xff", "\xff").encode("latin-1"))
    assert common.main(modes.EXPERIMENT, TINY) == 2
    error = capsys.readouterr().err
    assert part in error and RUN.name in error and "delete" in error and error.count("\n") == 1


WHOLE = {"format": common.FORMAT, "experiment": "modes", "runs": [], "runs_finished": 0, "runs_of_all": 1, "threads": [1],
         "cpu_minutes": 1}  # fmt: skip


@pytest.mark.parametrize("text, part", [
    (json.dumps(WHOLE)[:40], "damaged, not JSON"),
    ("{}", "without format"),
    ("3", "without format"),
    (json.dumps({**WHOLE, "experiment": "zoo"}), "experiment 1, zoo; wanted: gan-zoo experiment 1, modes"),
    *((json.dumps({k: v for k, v in WHOLE.items() if k != name}), f"without {name}") for name in WHOLE),
    *((json.dumps({**WHOLE, "runs": [run]}), "its runs lack what table and pictures show") for run in (1, {}, {"dataset": "x"})),
])  # fmt: skip
def test_damaged_results_are_named(text, part, capsys):
    HOME.mkdir(parents=True)
    (HOME / "modes.json").write_text(text)
    assert common.main(modes.EXPERIMENT, ["report=true", "runs=runs", "kimg=0.512"]) == 2
    error = capsys.readouterr().err
    assert part in error and str(HOME / "modes.json") in error and "delete it" in error and error.count("\n") == 1


def test_a_place_that_cannot_be_written_is_named_before_any_work(capsys, monkeypatch):
    Path("file").touch()
    Path("folder/modes.json").mkdir(parents=True)
    monkeypatch.setattr(common, "_make", lambda *_: pytest.fail("trained"))
    for words, part in (
        (["report=true", "docs=file/x"], "docs=file/x: cannot write there (Not a directory)"),
        (["report=true", "docs=file"], "docs=file: cannot write there (Not a directory)"),
        (["report=true", "kimg=1", "runs=file"], "runs=file/modes-1kimg: cannot write there (Not a directory)"),
        (["report=true", "results=folder"], "results=folder/modes.json: Is a directory"),
        ([*TINY[:3], "runs=file/x"], "runs=file/x/modes-0.512kimg: cannot write there (Not a directory)"),
        ([*TINY, "results=file/x"], "results=file/x: cannot write there (Not a directory)"),
        ([*TINY, "docs=file/x"], "docs=file/x: cannot write there (Not a directory)"),
    ):
        assert common.main(modes.EXPERIMENT, words) == 2
        error = capsys.readouterr().err
        assert part in error and error.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == ["file", "folder"]


def test_a_place_that_is_lost_on_the_way_is_named(capsys, monkeypatch):
    def full(run, *_):
        raise OSError(28, "No space left on device", str(run.log_path))

    monkeypatch.setattr(common, "_make", full)
    assert common.main(modes.EXPERIMENT, TINY) == 2
    assert capsys.readouterr().err == f"error: runs={RUN}.log: No space left on device\n"


def test_a_seed_given_twice_is_one_run(monkeypatch):
    made = []
    monkeypatch.setattr(common, "_make", lambda run, *_: made.append(run.folder.name) or 130)
    assert common.main(modes.EXPERIMENT, ["seeds=0,0,00", *(word for word in TINY if "seeds" not in word)]) == 130
    assert made == [RUN.name]
    assert json.loads((HOME / "modes.json").read_text())["runs_of_all"] == 36


@pytest.mark.parametrize("words, part", [
    (["report=true", "runs=runs", "kimg=1"], "no results yet"),
    (["only=ring,hinge", "runs=runs"], "only=ring,hinge: no run"),
    (["seeds=0,one"], "seeds=0,one: whole numbers"),
    (["kimg=0"], "kimg=0.0: must be above 0"),
    (["kmg=1"], "did you mean 'kimg'"),
])  # fmt: skip
def test_bad_options_are_one_line(words, part, capsys):
    assert common.main(modes.EXPERIMENT, words) == 2
    error = capsys.readouterr().err
    assert part in error and error.count("\n") == 1


@pytest.mark.parametrize("name", ALL)
def test_every_run_of_every_experiment_is_one_that_train_py_takes(name):
    experiment, runs = ALL[name], plan(name)
    assert len({run.folder for run in runs}) == len(runs) == {"modes": 108, "stacked": 4, "zoo": 32}.get(name, 12)
    kinds = {tuple(word for word in run.words if not word.startswith(("seed=", "dataset="))): run for run in runs}
    for run in kinds.values():
        arguments = cli.parse(run.words)
        config, left_out = build_config(cli.compose(arguments), arguments.explicit, arguments.chosen)
        assert left_out == [] and config.total_kimg > 0 and experiment.seconds(run.options) > 0
        assert not (config.loss["name"] == "wasserstein" and config.penalty["name"] == "none" and config.gan.weight_clip is None)


def plan(name):
    """All runs of an experiment."""
    own = {"path": "x.zip"} if name == "zoo" else {}
    return common.plan(ALL[name], ALL[name].schema(seeds=list(ALL[name].seeds), **own))


def test_all_experiments_fit_the_budget():
    """Ninety minutes of one CPU thread, by the forecasts."""
    assert sum(common.forecast(experiment, plan(name)) for name, experiment in ALL.items()) <= 90


def test_share_at_the_stride_frequency():
    x = torch.arange(32.0)
    wave = torch.cos(2 * torch.pi * x * 3 / 32).view(1, 1, 1, -1).expand(1, 1, 32, -1)  # far below
    rows = (-1.0) ** x.view(1, 1, -1, 1).expand(1, 1, -1, 32)  # every other row
    both = rows * rows.mT
    assert checkerboard.stride_share(5 + wave) == pytest.approx(0, abs=1e-9)  # the constant does not count
    assert checkerboard.stride_share(rows) == checkerboard.stride_share(rows.mT) == checkerboard.stride_share(both) == 1
    assert checkerboard.stride_share(wave + rows) == pytest.approx(1 / 1.5, abs=1e-6)  # a cosine has half the power of +-1
    noise = torch.randn(64, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert checkerboard.stride_share(noise) == pytest.approx(1 - (29 / 32) ** 2, abs=0.01)  # 3 of 32 rows and columns
    assert sum(checkerboard.profile(noise)) == pytest.approx(1)


def test_numbers_of_a_table():
    assert show.spread([]) == "-" and show.spread([2.0]) == "2.00" and show.spread([1.0, 3.0], ".1f") == "2.0 ± 1.4"
    assert show.markdown(("a", "b"), [["x", "1"]]) == "| a | b |\n| --- | --: |\n| x | 1 |"
