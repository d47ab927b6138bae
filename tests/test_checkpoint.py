"""Checkpoints: whole or not there, plain, and never a way to run code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import command
import pytest
import torch
from command import foreign_files, refused, tree

from errors import UserError
from training import checkpoint


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run, which tests only read."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.trainer.plot_losses", lambda lines, path: None)
        assert command.train(f"run_dir={folder}", "ema_half_life=1", "schedule.ema_half_life=null") == 0
    return folder


def state_at(images_seen, value=0.0):
    return {"clock": {"step": images_seen, "images_seen": images_seen}, "gan": {"w": torch.full((3,), value)}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_ones_and_the_best_are_kept(here):
    for images_seen in range(0, 5000, 500):
        checkpoint.save(here, state_at(images_seen, images_seen), keep=3, best=images_seen == 1000)
    assert names(here) == ["best.pt", "kimg00003.500.pt", "kimg00004.500.pt", "kimg00004.pt", "latest.pt"]
    assert checkpoint.load(here / "latest.pt")["gan"]["w"][0] == 4500 and checkpoint.load(here / "best.pt")["gan"]["w"][0] == 1000
    assert os.path.samefile(here / "latest.pt", here / "kimg00004.500.pt")  # a name, not a copy
    checkpoint.save(here, state_at(5000), keep=1, best=False)
    assert names(here) == ["best.pt", "kimg00005.pt", "latest.pt"]


def test_a_failed_write_leaves_the_old_files(here, monkeypatch):
    checkpoint.save(here, state_at(1000, 1.0), keep=3, best=True)
    before = {name: (here / name).read_bytes() for name in names(here)}

    def broken(state, file):
        file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(torch, "save", broken)
        checkpoint.save(here, state_at(1000, 2.0), keep=3, best=True)
    checkpoint.clean(here)
    assert {name: (here / name).read_bytes() for name in names(here)} == before


def test_copies_where_there_are_no_hard_links(here, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("not supported")))
    checkpoint.save(here, state_at(1000, 1.0), keep=1, best=True)
    checkpoint.save(here, state_at(2000, 2.0), keep=1, best=False)
    assert names(here) == ["best.pt", "kimg00002.pt", "latest.pt"]
    assert checkpoint.load(here / "best.pt")["gan"]["w"][0] == 1 and checkpoint.load(here / "latest.pt")["gan"]["w"][0] == 2


def test_the_first_tensor_that_is_not_finite_is_named():
    fine = {"a": torch.zeros(2), "b": [torch.ones(1), {"c": torch.tensor(3)}], "d": 1.0, "e": "text"}
    assert checkpoint.nonfinite(fine) is None
    assert checkpoint.nonfinite({**fine, "b": [torch.ones(1), {"c": torch.tensor([1.0, float("nan")])}]}) == "b.1.c"
    assert checkpoint.nonfinite({"w": torch.tensor([float("-inf")], dtype=torch.bfloat16)}) == "w"


def test_a_checkpoint_is_plain(run):
    """Tensors, numbers, strings and containers; fp32 averages; no wrapper's prefixes."""
    state = torch.load(run / "checkpoints" / "latest.pt", weights_only=True)

    def check(value):
        if isinstance(value, dict):
            for name, item in value.items():
                assert type(name) in (str, int) and "_orig_mod" not in str(name) and not str(name).startswith("module.")
                check(item)
        elif type(value) in (list, tuple):
            for item in value:
                check(item)
        else:
            assert value is None or type(value) in (torch.Tensor, float, int, str, bool), type(value)
            assert not isinstance(value, torch.Tensor) or (value.device.type == "cpu" and not value.requires_grad)

    check(state)
    assert {"format", "clock", "gan", "ema", "optimizers", "config", "spec", "content_hash", "best"} <= set(state)
    assert all(v.dtype == torch.float32 for v in state["ema"]["generator"].values() if v.is_floating_point())
    assert {f"generator.{k}": v.shape for k, v in state["ema"]["generator"].items()} == {
        k: v.shape for k, v in state["gan"].items() if k.startswith("generator.")
    }


def test_it_opens_without_this_project(run, here):
    code = (
        "import sys, torch; state = torch.load(sys.argv[1], weights_only=True); "
        "print(state['format'], 'training' in sys.modules, 'gans' in sys.modules)"
    )
    file = run / "checkpoints" / "latest.pt"
    done = subprocess.run([sys.executable, "-I", "-c", code, str(file)], cwd=here, capture_output=True, text=True)
    assert done.stdout.strip() == f"{checkpoint.FORMAT} False False", done.stderr


def test_find(run, here, monkeypatch):
    file = run / "checkpoints" / "latest.pt"
    assert checkpoint.find(str(run)) == file and checkpoint.find(str(file)) == file
    monkeypatch.setenv("HOME", str(run.parent))
    assert checkpoint.find("~/run") == file
    with pytest.raises(UserError, match="^elsewhere: no such file or folder"):
        checkpoint.find("elsewhere")
    with pytest.raises(UserError, match="no checkpoints/latest.pt in this folder"):
        checkpoint.find(str(here))
    with pytest.raises(UserError, match="no such checkpoint"):
        checkpoint.load(Path("elsewhere"))


def test_files_that_are_no_checkpoints(run, here, capsys, recwarn):
    """... and none of them gets to run code."""
    (here / "x").mkdir()
    for name, content in foreign_files((run / "checkpoints" / "latest.pt").read_bytes()).items():
        (here / "x" / name).write_bytes(content)
        assert f"x/{name}: not a checkpoint of this project" in refused(capsys, f"checkpoint=x/{name}", run=command.sample)
    assert not [w for w in recwarn if "checkpoint" in str(w.message)]
    pickle.loads((here / "x" / "crafted_pickle").read_bytes())
    assert (here / "pwned").is_dir()  # the payload does work where it is let loose


def test_flipped_bits_are_no_traceback(run, here):
    """Whatever is broken: a refusal, or a state that opens (bits of a weight)."""
    whole = (run / "checkpoints" / "latest.pt").read_bytes()
    rng = torch.Generator().manual_seed(0)
    refusals = 0
    for _ in range(60):
        broken = bytearray(whole)
        for position in torch.randint(len(whole), (3,), generator=rng).tolist():
            broken[position if refusals % 2 else -1 - position % 9000] ^= 1 << position % 8
        (here / "broken.pt").write_bytes(broken)
        try:
            checkpoint.load(here / "broken.pt")
        except UserError as error:
            refusals += 1
            assert "\n" not in str(error)
    assert refusals > 10


def test_a_checkpoint_with_a_foreign_content(run, here, capsys):
    state = torch.load(run / "checkpoints" / "latest.pt", weights_only=True)
    later = {**state["config"], "gan": {"name": "later"}}
    for change in (
        {"config": {}},
        {"config": 5},
        {"spec": {}},
        {"ema": {}},
        {"clock": {"hour": 1}},
        {"gan": {}},
        {"config": later},
    ):
        torch.save({**state, **change}, "x.pt")
        message = refused(capsys, "checkpoint=x.pt", run=command.sample)
        assert "x.pt: does not fit this version of the code" in message
    assert tree(here) == ["x.pt"]
