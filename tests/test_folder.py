"""A run folder belongs to one process at a time, and damage beside the checkpoint that a run goes on from stops nothing."""

import json
import os
import signal
import subprocess
import sys

import torch
from command import ROOT, train

from training import checkpoint, cli
from training.folder import RunFolder, lock
from training.main import train as job

TINY = ("gan.width=8", "gan.cardinality=2", "batch_size=8", "total_kimg=0.016", "checkpoint.every_kimg=0.008", "device=cpu")


def resume(run, *options):
    return cli.main(job, [f"resume={run}", "total_kimg=0.032", *options])


def test_a_second_process_is_refused_and_a_killed_one_lets_go(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(*TINY, f"run_dir={run}", "eval.samples=0") == 0
    log = (run / "log.jsonl").read_bytes()
    code = f"""if True:
        import sys, time
        sys.path.insert(0, {json.dumps(str(ROOT))})
        from pathlib import Path
        from training.folder import RunFolder, lock
        handle = lock(RunFolder(Path({json.dumps(str(run))})))
        print("locked", flush=True)
        time.sleep(60)"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "locked\n"
        capsys.readouterr()
        assert resume(run) == 2
        assert "another process is training in this folder" in capsys.readouterr().err
        assert (run / "log.jsonl").read_bytes() == log
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert resume(run) == 0


def test_a_damaged_best_checkpoint_does_not_stop_a_resume(tmp_path):
    run = tmp_path / "run"
    assert train(*TINY, f"run_dir={run}", "eval.samples=20") == 0
    best = run / "checkpoints" / "best.pt"
    data = best.read_bytes()
    best.unlink()  # it is another name of the last checkpoint
    best.write_bytes(data[:1000])
    assert resume(run) == 0
    assert torch.load(best, weights_only=True)["clock"]["images_seen"] == 32


def test_a_disk_that_fails_during_the_run_is_one_line(tmp_path, capsys, monkeypatch):
    save, calls = checkpoint.save, []

    def full(*arguments):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(28, "No space left on device", "x/kimg00000.008.pt")
        return save(*arguments)

    monkeypatch.setattr(checkpoint, "save", full)
    assert train(*TINY, f"run_dir={tmp_path / 'run'}", "eval.samples=0") == 1
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert err == [f"error: x/kimg00000.008.pt: No space left on device; the last checkpoint is in {tmp_path / 'run'}"]


def test_where_locks_are_not_known_runs_go_on(tmp_path, monkeypatch):
    import fcntl

    def unknown(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unknown)
    handle = lock(RunFolder(tmp_path))
    assert handle is not None
    os.close(handle)
