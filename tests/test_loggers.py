import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from errors import UserError
from training.loggers import build_loggers

CONFIG = {"gan": {"name": "r3gan"}, "seed": 0}


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "kimg00001.png"
    Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3)).save(path)
    return path


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "a-run"
    path.mkdir()
    return path


class FakeWandb:
    """What the logger uses of wandb, with everything it is told written down."""

    def __init__(self, logged_in=False, server=True, works=True):
        self.logged_in, self.server, self.works = logged_in, server, works
        self.inits, self.logs, self.metrics, self.said = [], [], [], []
        self.finished = self.torn_down = 0
        self.Settings = lambda **settings: settings
        self.Image = lambda path: ("image", path)

    def login(self, **options):
        assert options == {"prompt": False, "verify": False}  # must neither ask nor wait for the network
        if isinstance(self.logged_in, Exception):
            raise self.logged_in
        return self.logged_in

    def init(self, **options):
        self.inits.append(options)
        if options["mode"] != "offline" and not self.server or not self.works:
            raise ConnectionError("no route\nto host")
        return SimpleNamespace(log=self.log, finish=self.finish, define_metric=lambda *a, **k: self.metrics.append((a, k)))

    def log(self, values):
        if not self.works:
            raise BrokenPipeError("service is gone")
        self.logs.append(values)

    def finish(self):
        self.finished += 1

    def teardown(self):
        self.torn_down += 1


@pytest.fixture
def fake(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def install(**options):
        module = FakeWandb(**options)
        monkeypatch.setitem(sys.modules, "wandb", module)
        return module

    return install


def never(text):
    raise AssertionError(f"nothing should be said, but: {text}")


# names


@pytest.mark.parametrize("names", [[], ["none"]])
def test_no_logger(run_dir, names):
    assert build_loggers(names, run_dir, CONFIG, False, never) == []
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("names, message", [
    (["wandbb"], r"^logger: unknown 'wandbb'; did you mean 'wandb'\?$"),
    (["tensorboard", "mlflow"], "^logger: unknown 'mlflow'; allowed: none, tensorboard, wandb$"),
    (["none", "wandb"], "^logger: 'none' stands beside wandb; name one or the other$"),
])  # fmt: skip
def test_wrong_names(run_dir, names, message):
    with pytest.raises(UserError, match=message):
        build_loggers(names, run_dir, CONFIG, False, never)
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("name, module", [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")])
def test_a_missing_package_is_named(run_dir, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail
    with pytest.raises(UserError, match=f"^logger: {name} is not usable here .*pip install {name}$"):
        build_loggers([name], run_dir, CONFIG, False, never)


# tensorboard


def events(run_dir):
    accumulator = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    return accumulator.Reload()


def test_tensorboard_holds_scalars_and_pictures_over_images_seen(run_dir, picture):
    (logger,) = build_loggers(["tensorboard", "tensorboard"], run_dir, CONFIG, False, never)
    for step in range(3):
        logger.scalars(step, 64 * step, {"d/loss": 0.5 * step, "d/r1": torch.tensor(2.0), "n": np.int64(3), "text": "x",
                                         "none": None, "many": torch.ones(2), "images_seen": 64 * step, "kimg": 0.0})  # fmt: skip
    logger.picture("samples", picture, 128)
    logger.close()
    logger.close()
    logger.scalars(9, 999, {"d/loss": 1.0})  # after the end: ignored
    found = events(run_dir)
    assert sorted(found.Tags()["scalars"]) == ["d/loss", "d/r1", "n", "step"]
    assert [(e.step, e.value) for e in found.Scalars("d/loss")] == [(0, 0.0), (64, 0.5), (128, 1.0)]
    (image,) = found.Images("samples")
    assert (image.step, image.width, image.height) == (128, 5, 4)
    assert sorted(p.name for p in run_dir.iterdir()) == ["tensorboard"]


@pytest.mark.parametrize("images_seen", [128, None])
def test_tensorboard_of_a_resumed_run_hides_what_lies_past_the_checkpoint(run_dir, images_seen):
    (logger,) = build_loggers(["tensorboard"], run_dir, CONFIG, False, never)
    for step in range(6):
        logger.scalars(step, 64 * step, {"loss": float(step)})
    logger.close()
    # the checkpoint is at 128 images; the next line of the log is at 192, as before, or later, if it logs more rarely
    (logger,) = build_loggers(["tensorboard"], run_dir, CONFIG, True, never, images_seen=images_seen)
    first = 3 if images_seen is None else 4
    logger.scalars(first, 64 * first, {"loss": -1.0})
    logger.close()
    assert [(e.step, e.value) for e in events(run_dir).Scalars("loss")] == [(0, 0.0), (64, 1.0), (128, 2.0), (64 * first, -1.0)]


# a logger that fails


def test_a_failing_logger_is_said_once_and_dropped_the_others_go_on(run_dir, picture, fake):
    said = []
    module = fake(logged_in=True)
    wandb, tensorboard = build_loggers(["wandb", "tensorboard"], run_dir, CONFIG, False, said.append)
    module.works = False
    for step in range(3):
        for logger in (wandb, tensorboard):
            logger.scalars(step, 64 * step, {"loss": 1.0})
            logger.picture("samples", picture, 64 * step)
    wandb.close()
    tensorboard.close()
    assert said == ["logger wandb failed and is dropped; the run goes on: BrokenPipeError: service is gone"]
    assert module.finished == 0
    assert len(events(run_dir).Scalars("loss")) == 3


def test_a_missing_picture_does_not_stop_a_run(run_dir):
    said = []
    (logger,) = build_loggers(["tensorboard"], run_dir, CONFIG, False, said.append)
    logger.picture("samples", run_dir / "missing.png", 0)
    logger.close()
    assert len(said) == 1 and "FileNotFoundError" in said[0]


def test_a_logger_that_does_not_start_is_left_out(run_dir, fake):
    said = []
    fake(logged_in=True, works=False)
    assert build_loggers(["wandb"], run_dir, CONFIG, False, said.append) == []
    assert said[-1] == "logger wandb did not start and is left out: ConnectionError: no route to host"


# wandb


@pytest.mark.parametrize("logged_in", [False, ValueError("malformed key")])
def test_wandb_without_login_records_offline(run_dir, fake, logged_in):
    said = []
    module = fake(logged_in=logged_in)
    build_loggers(["wandb"], run_dir, CONFIG, False, said.append)
    assert [options["mode"] for options in module.inits] == ["offline"]
    assert len(said) == 1 and "recording offline" in said[0]


def test_wandb_of_releases_that_cannot_be_told_not_to_ask_records_offline(run_dir, fake, monkeypatch):
    module = fake(logged_in=TypeError("unexpected keyword"))
    build_loggers(["wandb"], run_dir, CONFIG, False, lambda text: None)
    monkeypatch.setenv("WANDB_API_KEY", "x")
    build_loggers(["wandb"], run_dir, CONFIG, False, never)
    assert [options["mode"] for options in module.inits] == ["offline", None]


def test_wandb_without_connection_records_offline(run_dir, fake):
    said = []
    module = fake(logged_in=True, server=False)
    (logger,) = build_loggers(["wandb"], run_dir, CONFIG, False, said.append)
    assert [options["mode"] for options in module.inits] == [None, "offline"]
    assert module.torn_down == 1
    assert said == ["logger wandb: no connection, recording offline: ConnectionError: no route to host"]
    assert 0 < module.inits[0]["settings"]["init_timeout"] <= 60 and 0 < module.inits[0]["settings"]["finish_timeout"] <= 300


@pytest.mark.parametrize("mode", ["disabled", "offline", "online"])
def test_wandb_mode_of_the_environment_decides(run_dir, fake, monkeypatch, mode):
    module = fake(logged_in=AssertionError("must not look for a login"))
    monkeypatch.setenv("WANDB_MODE", mode)
    build_loggers(["wandb"], run_dir, CONFIG, False, never)
    assert [options["mode"] for options in module.inits] == [None]  # wandb reads the variable itself


def test_wandb_run_keeps_its_id_and_folder_over_a_resume(run_dir, fake):
    module = fake(logged_in=True)
    for resume in (False, True, True, False):
        build_loggers(["wandb"], run_dir, CONFIG, resume, never)
    ids = [options["id"] for options in module.inits]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert (run_dir / "wandb" / "run_id.txt").read_text() == ids[3] + "\n"
    for options in module.inits:
        assert Path(options["dir"]) == run_dir and options["name"] == "a-run" and options["resume"] == "allow"
        assert options["config"] == CONFIG


def test_wandb_gets_values_and_pictures_over_images_seen(run_dir, picture, fake):
    module = fake(logged_in=True)
    (logger,) = build_loggers(["wandb"], run_dir, CONFIG, False, never)
    logger.scalars(2, 128, {"d/loss": torch.tensor(0.5), "bad": None})
    logger.picture("samples", picture, 128)
    logger.close()
    logger.close()
    logger.scalars(3, 192, {"d/loss": 0.5})
    assert module.metrics == [(("*",), {"step_metric": "images_seen"})]
    assert module.logs == [{"d/loss": 0.5, "step": 2, "images_seen": 128},
                           {"samples": ("image", str(picture)), "images_seen": 128}]  # fmt: skip
    assert module.finished == 1


def test_the_real_wandb_records_offline_inside_the_run_folder(run_dir, picture, tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (logger,) = build_loggers(["wandb"], run_dir, CONFIG, False, never)
    logger.scalars(1, 64, {"loss": 1.0})
    logger.picture("samples", picture, 64)
    logger.close()
    wandb.teardown()
    run_id = (run_dir / "wandb" / "run_id.txt").read_text().strip()
    (folder,) = run_dir.glob(f"wandb/offline-run-*-{run_id}")
    assert list(folder.glob("files/media/images/*.png")) and (folder / f"run-{run_id}.wandb").stat().st_size > 0
