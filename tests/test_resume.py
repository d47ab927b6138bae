"""A run that is killed, at any moment and again and again, ends with the bits of a run that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import toy_run
import toys

from training import checkpoint
from training.folder import RunFolder, cut_back
from training.log import JsonLines

TIMES = ("sec_per_kimg", "images_per_sec", "memory_gb")
OWN = {  # options that make a short run show what a long one does
    "clipped": {"many": 4, "few": 2, "first_steps": 3, "every": 5},
    "r3gan": {},
}
NAMES = ["clipped", "lazy", "pooled", "growing", "reusing", "r3gan"]


def options(name, folder, **changes):
    gan = {**({} if name == "r3gan" else {"dropout": 0.2}), **OWN.get(name, {})}
    every = {
        "checkpoint": {"every_kimg": 0.016, "keep": 2},
        "log": {"every_kimg": 0.012},
        "sample": {"every_kimg": 0.024, "rows": 2, "columns": 2},
        "eval": {"every_kimg": 0.02, "samples": 1},
    }
    return toys.values(name, gan=gan, dataset={"name": "toy", "xflip": True}, run_dir=str(folder), **{**every, **changes})


def begin(name, folder, processes=1, die_at=None, slow=0.0, explicit=(), touches=None, **changes):
    """Start or go on with the run in ``folder``, as a person would."""
    values = options(name, folder, **changes)
    if (folder / "config.yaml").exists():
        values = {"resume": str(folder), **{k: values[k] for k in explicit}}
    job = {"values": values, "explicit": list(explicit), "die_at": die_at, "slow": slow, "touches": touches, "evaluate": True}
    return toy_run.start("train", job, folder.with_suffix(".out"), processes)


def said(folder):
    return folder.with_suffix(".out").read_text()


_finished = {}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """(name, processes, options) -> the folder of a run that nothing disturbed, made once."""

    def make(name, processes=1, **changes):
        key = (name, processes, json.dumps(changes, sort_keys=True))
        if key not in _finished:
            folder = tmp_path_factory.mktemp("whole") / name
            touches = str(folder.with_suffix(".touches"))
            assert toy_run.wait(begin(name, folder, processes, touches=touches, **changes)) == [0] * processes, said(folder)
            _finished[key] = folder
        return _finished[key]

    return make


def same(a, b, where=""):
    """Equality of nested containers to the last bit, types, key order and tensor dtypes included; the number of tensors."""
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
        return 1
    if isinstance(a, dict):
        assert list(a) == list(b), where
        return sum(same(a[k], b[k], f"{where}.{k}") for k in a)
    if isinstance(a, list | tuple):
        assert len(a) == len(b), where
        return sum(same(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b)))
    assert a == b or a != a and b != b, f"{where}: {a} and {b}"
    return 0


def untimed(line):
    return {k: v for k, v in line.items() if k not in TIMES}


def assert_same_run(folder, whole, exact_log=True, files=True):
    state, other = (checkpoint.load(f / "checkpoints" / "latest.pt") for f in (folder, whole))
    assert same(state, other) > 20
    log, other_log = (JsonLines.read(f / "log.jsonl") for f in (folder, whole))
    assert [(line["step"], "eval/roughly" in line) for line in log] == [
        (line["step"], "eval/roughly" in line) for line in other_log
    ]
    for line, other_line in zip(log, other_log):
        if exact_log:
            assert untimed(line) == untimed(other_line)
        else:  # sums over processes are then formed in another order
            assert untimed(line) == {k: pytest.approx(v, rel=1e-5, abs=1e-7) for k, v in untimed(other_line).items()}
    measured = {line["eval/roughly"]: line["step"] for line in log if "eval/roughly" in line}
    if measured:
        assert checkpoint.load(folder / "checkpoints" / "best.pt")["clock"]["step"] == measured[max(measured)]
    if files:
        names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        assert names == sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())
        for name in names:
            if name.endswith((".png", ".yaml")):
                assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
            if name.endswith("best.pt"):
                assert same(checkpoint.load(folder / name), checkpoint.load(whole / name)) > 20


def through_kills(name, folder, moments, processes=1, **changes):
    """Start, die at each of the ``moments`` in turn, go on; at last run to the end. How often it died."""
    for kills, die_at in enumerate(moments):
        statuses = toy_run.wait(begin(name, folder, processes, die_at=die_at, **changes))
        if statuses == [0] * processes:
            return kills
        assert -signal.SIGKILL in statuses, said(folder)
    assert toy_run.wait(begin(name, folder, processes, **changes)) == [0] * processes, said(folder)
    return len(moments)


@pytest.mark.parametrize(("name", "precision"), [*((name, "fp32") for name in NAMES), ("r3gan", "fp16")])
def test_killed_at_random_touches_of_the_disk(name, precision, tmp_path, uninterrupted):
    rng = random.Random(name)
    moments = [("any", rng.randrange(2, 40)) for _ in range(3)]
    assert through_kills(name, tmp_path / "run", moments, precision=precision) >= 2
    assert_same_run(tmp_path / "run", uninterrupted(name, precision=precision))


def test_killed_inside_the_write_of_a_checkpoint(tmp_path, uninterrupted):
    """Half of a checkpoint is in its file when the process dies: the first, then a later one, then the next."""
    whole, folder = uninterrupted("pooled", precision="fp32"), tmp_path / "run"
    touches = whole.with_suffix(".touches").read_text().split()
    assert touches.count("save") == 8  # at 0, every 16 of 80 images, and with the evaluations at 24 and 40
    for i, what in enumerate(touches):  # on the disk before the name changes, and the name before the run goes on
        assert what != "save" or touches[i : i + 4] == ["save", "fsync", "replace", "fsync"]
    for nth, step in ((0, None), (2, 2), (0, 2), (1, 3)):
        assert toy_run.wait(begin("pooled", folder, die_at=("save", nth))) == [-signal.SIGKILL]
        (half,) = (folder / "checkpoints").glob("*.tmp")
        assert 0 < half.stat().st_size < 0.6 * (whole / "checkpoints" / "latest.pt").stat().st_size
        latest = folder / "checkpoints" / "latest.pt"
        assert latest.exists() == (step is not None)
        assert step is None or checkpoint.load(latest)["clock"]["step"] == step
    assert through_kills("pooled", folder, []) == 0
    assert_same_run(folder, whole)


def test_the_best_so_far_is_known_after_a_kill(tmp_path, uninterrupted):
    """What comes after the kill is worse than what came before it: the best checkpoint stays."""
    whole, folder = uninterrupted("lazy", precision="fp32"), tmp_path / "run"
    best = checkpoint.load(whole / "checkpoints" / "best.pt")["clock"]["images_seen"]
    assert best == 40
    assert through_kills("lazy", folder, [("save", 5)]) == 1  # those before: at 0, 16, 24, 32 and 40 images
    assert "resumed at 0.04 kimg" in said(folder)
    assert_same_run(folder, whole)


def test_killed_before_there_was_anything_to_resume(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    assert toy_run.wait(begin("lazy", folder, die_at=("replace", 0))) == [-signal.SIGKILL]
    assert not (folder / "config.yaml").exists()
    (status,) = toy_run.wait(toy_run.start("train", {"values": {"resume": str(folder)}}, folder.with_suffix(".out")))
    assert status == 2 and "holds no run" in said(folder)
    # starting again in the same folder is allowed; killed before the first checkpoint, it is resumed by config.yaml alone
    assert toy_run.wait(begin("lazy", folder, die_at=("save", 0))) == [-signal.SIGKILL]
    assert (folder / "config.yaml").exists() and not (folder / "checkpoints" / "latest.pt").exists()
    assert through_kills("lazy", folder, []) == 0
    assert_same_run(folder, uninterrupted("lazy", precision="fp32"))


@pytest.mark.slow
def test_killed_at_every_touch_of_the_disk(tmp_path, uninterrupted):
    whole = uninterrupted("pooled", precision="fp32")
    touches = whole.with_suffix(".touches").read_text().split()
    assert len(touches) > 50
    for n in range(len(touches)):
        folder = tmp_path / f"run{n}"
        assert through_kills("pooled", folder, [("any", n)], precision="fp32") == 1, n
        assert_same_run(folder, whole)


@pytest.mark.parametrize("name", ["clipped", "reusing"])
def test_killed_from_outside_at_random_moments(name, tmp_path, uninterrupted):
    folder, rng, kills = tmp_path / "run", random.Random(name), 0
    for _ in range(20):
        group = begin(name, folder, slow=0.01)
        group[0].join(rng.uniform(0.2, 1.2))
        if group[0].exitcode is None:
            group[0].kill()
            kills += 1
        if toy_run.wait(group) == [0]:
            break
    else:
        assert through_kills(name, folder, []) == 0
    assert kills
    assert_same_run(folder, uninterrupted(name, precision="fp32"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_finishes_the_step_and_saves(number, tmp_path, uninterrupted):
    folder = tmp_path / "run"
    group = begin("pooled", folder, slow=0.02)
    while not (folder / "log.jsonl").exists() or not (folder / "log.jsonl").stat().st_size:
        time.sleep(0.02)
    os.kill(group[0].pid, number)
    assert toy_run.wait(group) == [128 + number], said(folder)
    assert f"resume={folder}" in said(folder)
    clock = checkpoint.load(folder / "checkpoints" / "latest.pt")["clock"]
    assert 0 < clock["images_seen"] < 80
    assert through_kills("pooled", folder, []) == 0
    files = clock["images_seen"] <= 48  # else the checkpoint of the signal is among the last two
    assert_same_run(folder, uninterrupted("pooled", precision="fp32"), files=files)


@pytest.mark.parametrize("name", ["r3gan", "growing"])
def test_n_and_n_more_steps_are_2n_steps(name, tmp_path, uninterrupted):
    """A longer total_kimg leaves the length of schedules as it was; also where nobody had stated it."""
    folder = tmp_path / "run"
    every = {"eval": {"samples": 0}, "checkpoint": {"every_kimg": 0.02, "keep": 2}, "log": {"every_kimg": 0.02},
             "sample": {"every_kimg": 0.04, "rows": 1, "columns": 2}}  # fmt: skip
    assert toy_run.wait(begin(name, folder, total_kimg=0.04, **every)) == [0], said(folder)
    half = checkpoint.load(folder / "checkpoints" / "latest.pt")
    assert half["clock"]["images_seen"] == 40 and half["config"]["schedule_kimg"] == 0.04
    assert toy_run.wait(begin(name, folder, explicit=["total_kimg"], total_kimg=0.08)) == [0], said(folder)
    whole = uninterrupted(name, total_kimg=0.08, schedule_kimg=0.04, **every)
    assert_same_run(folder, whole)


def test_a_finished_run_stays_as_it_is(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    assert through_kills("lazy", folder, []) == through_kills("lazy", folder, []) == 0
    assert_same_run(folder, uninterrupted("lazy", precision="fp32"))


def test_an_older_checkpoint_can_be_gone_on_from_and_killed(tmp_path, uninterrupted):
    """What lies past it is given up at once: a kill before its first own checkpoint does not bring it back."""
    folder, many = tmp_path / "run", {"checkpoint": {"every_kimg": 0.016, "keep": 9}}
    assert through_kills("pooled", folder, [], **many) == 0
    older = {"values": {"resume": str(folder / "checkpoints" / "kimg00000.032.pt")}, "evaluate": True}
    group = toy_run.start("train", {**older, "die_at": ("save", 0)}, folder.with_suffix(".out"))
    assert toy_run.wait(group) == [-signal.SIGKILL]
    assert checkpoint.load(folder / "checkpoints" / "latest.pt")["clock"]["images_seen"] == 32
    assert through_kills("pooled", folder, [], **many) == 0
    assert_same_run(folder, uninterrupted("pooled", **many))


def test_cut_back_drops_only_what_lies_past_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    for path in (folder.samples, folder.checkpoints):
        path.mkdir()
    kept = ["samples/kimg00000.png", "samples/kimg00000.032.png", "samples/mine.png", "checkpoints/kimg00000.032.pt"]
    dropped = ["samples/kimg00000.033.png", "samples/kimg00001.png", "samples/.kimg00001.png.tmp", "checkpoints/kimg00000.048.pt",
               "checkpoints/kimg00000.064.pt.tmp"]  # fmt: skip
    for name in kept + dropped:
        (tmp_path / name).write_bytes(b"x")
    with JsonLines(folder.log) as log:
        for step in (1, 2, 4, 4, 5):
            log.write({"step": step})
    with open(folder.log, "ab") as file:
        file.write(b'{"step": 3, "los')
    cut_back(folder, step=4, images_seen=32)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted([*kept, "log.jsonl"])
    assert [line["step"] for line in JsonLines.read(folder.log)] == [1, 2, 4, 4]


@pytest.mark.parametrize("every", [0.024, 0.1, 0.008])
def test_log_lines_come_when_they_are_due(every, tmp_path, uninterrupted):
    """0.3 // 0.1 is 2 in floating point: counted in images, no line is missing."""
    total = 6 * every
    batch = round(1000 * every)
    folder = uninterrupted("lazy", total_kimg=total, log={"every_kimg": every}, batch_size=min(batch, 50), eval={"samples": 0})
    assert [line["images_seen"] for line in JsonLines.read(folder / "log.jsonl")] == [batch * i for i in range(1, 7)]


def test_what_must_not_change_on_resume_is_refused(tmp_path):
    folder = tmp_path / "run"
    assert toy_run.wait(begin("lazy", folder, die_at=("save", 2))) == [-signal.SIGKILL]
    before = sorted((str(p), p.stat().st_mtime_ns) for p in folder.rglob("*"))
    for option, value in {"batch_size": 4, "seed": 3, "schedule_kimg": 1.0}.items():
        assert toy_run.wait(begin("lazy", folder, explicit=[option], **{option: value})) == [2]
        assert f"error: {option}={value}: the run was started with {option}=" in said(folder)
    assert sorted((str(p), p.stat().st_mtime_ns) for p in folder.rglob("*")) == before


# two processes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pooled", *(pytest.param(n, marks=pytest.mark.slow) for n in ("reusing", "r3gan"))])
def test_two_processes_are_killed_and_resumed(name, tmp_path, uninterrupted):
    """The first dies and the other is killed, as torchrun does."""
    folder, rng, kills = tmp_path / "run", random.Random(name), 0
    for _ in range(2):
        group = begin(name, folder, 2, die_at=("any", rng.randrange(8, 30)))
        group[0].join(60)
        kills += group[0].exitcode == -signal.SIGKILL
        group[1].kill()
        group[1].join()
    assert kills
    assert toy_run.wait(begin(name, folder, 2)) == [0, 0], said(folder)
    assert_same_run(folder, uninterrupted(name, 2), exact_log=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["growing", "r3gan"])
def test_torchrun_with_two_processes_killed_from_outside(name, tmp_path, uninterrupted):
    """The real launcher: all its processes killed once, then one worker alone (torchrun ends the other), then to the end."""
    folder = tmp_path / "run"
    script = Path(toy_run.__file__)

    def launch(slow):
        values = {"resume": str(folder)} if (folder / "config.yaml").exists() else options(name, folder)
        job = json.dumps({"values": values, "slow": slow, "evaluate": True})
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script), job]
        with open(folder.with_suffix(".out"), "a") as out:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            return subprocess.Popen(command, cwd=script.parent.parent, stdout=out, stderr=out, env=environment)

    def workers_of(process):
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
        return [int(pid) for pid in children.split()]

    def wait_for(name, process):
        for _ in range(600):
            if list(folder.glob(name)):
                return
            assert process.poll() is None, said(folder)
            time.sleep(0.1)
        raise AssertionError(f"no {name}")

    process = launch(0.1)
    wait_for("checkpoints/kimg00000.016.pt", process)
    for pid in [process.pid, *workers_of(process)]:  # the launcher first: it must not see its workers die
        os.kill(pid, signal.SIGKILL)
    process.wait()
    process = launch(0.1)
    wait_for("checkpoints/kimg00000.048.pt", process)
    os.kill(workers_of(process)[-1], signal.SIGKILL)
    assert process.wait(120) != 0
    assert launch(0).wait(120) == 0, said(folder)
    assert_same_run(folder, uninterrupted(name, 2), exact_log=False)


@pytest.mark.slow
def test_a_process_of_its_own_on_real_data(tmp_path):
    """R3GAN on the digits by a cold start of the script: killed from outside, resumed, equal."""
    script = Path(toy_run.__file__)

    def launch(folder):
        values = options("r3gan", folder, checkpoint={"every_kimg": 0.008, "keep": 2}, total_kimg=0.16)
        values["dataset"] = {"name": "digits", "resolution": 8}
        values = {"resume": str(folder)} if (folder / "config.yaml").exists() else values
        return subprocess.Popen([sys.executable, str(script), json.dumps({"values": values, "evaluate": True})],
                                cwd=script.parent.parent, stdout=subprocess.DEVNULL)  # fmt: skip

    assert launch(tmp_path / "whole").wait(60) == 0
    process = launch(tmp_path / "run")
    while not (tmp_path / "run" / "checkpoints" / "kimg00000.024.pt").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    seen = checkpoint.load(tmp_path / "run" / "checkpoints" / "latest.pt")["clock"]["images_seen"]
    assert 0 < seen < 160
    assert launch(tmp_path / "run").wait(60) == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_states_that_differ_in_one_bit_are_told_apart():
    a = {"gan": {"w": torch.tensor([1.0, 2.0])}, "best": 1.0, "betas": (0.5, 0.9)}
    assert same(a, {**a, "gan": {"w": a["gan"]["w"].clone()}}) == 1
    near = {"w": torch.nextafter(a["gan"]["w"], torch.tensor(9.0))}
    others = [{**a, "gan": near}, {**a, "gan": {"w": a["gan"]["w"].double()}}, {**a, "best": 1.1}, {**a, "betas": [0.5, 0.9]}]
    for b in [*others, {"gan": a["gan"]}, {**a, "more": 1}]:
        with pytest.raises(AssertionError):
            same(a, b)
