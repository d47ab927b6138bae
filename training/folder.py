"""The run folder: what lies where, opening a new one, and going on in an old one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from errors import UserError
from training import checkpoint
from training.log import JsonLines, cut_pictures, images_of


class RunFolder:
    """Paths of a run: config.yaml, log.jsonl, loss.png, samples/, checkpoints/; the checkpoint it goes on from, if any."""

    def __init__(self, path: Path, start: Path | None = None):
        self.path, self.start = path, start
        self.config, self.log, self.losses = path / "config.yaml", path / "log.jsonl", path / "loss.png"
        self.samples, self.checkpoints = path / "samples", path / "checkpoints"

    @property
    def holds_run(self) -> bool:
        """Whether a run has been started here."""
        return self.config.exists() or self.log.exists() or any(self.checkpoints.glob("*.pt"))

    def read_config(self) -> Any:
        """What config.yaml holds; UserError if it cannot be read."""
        try:
            return yaml.safe_load(self.config.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{self.config}: cannot be read ({' '.join(str(error).split())[:200]})") from error

    def write_config(self, values: dict[str, Any]) -> None:
        """Write config.yaml, atomically."""
        temporary = self.config.with_name(self.config.name + checkpoint.TEMPORARY)
        temporary.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
        os.replace(temporary, self.config)

    def write_report(self, lines: list[str]) -> None:
        """Write data.txt: what was found in the data's files, those that were left out among them."""
        if lines:
            self.path.joinpath("data.txt").write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")


def make(folder: RunFolder, option: str) -> None:
    """Create what is missing of the folder; UserError naming ``option`` if nothing can be written there."""
    try:
        for path in (folder.path, folder.samples, folder.checkpoints):
            path.mkdir(parents=True, exist_ok=True)
        probe = folder.path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{option}={folder.path}: cannot write there ({error.strerror}); give another folder") from None


def check_free(run_dir: str | None) -> None:
    """UserError if ``run_dir`` holds a run."""
    try:
        if run_dir is not None and RunFolder(Path(run_dir).expanduser()).holds_run:
            raise UserError(f"run_dir={run_dir}: holds a run already; go on with resume={run_dir}, or give another folder")
    except OSError as error:
        raise UserError(f"run_dir={run_dir}: cannot be a folder ({error.strerror}); give another one") from error


def open_new(run_dir: str | None, gan: str, dataset: str) -> RunFolder:
    """A folder for a new run: ``run_dir``, or the first free runs/<gan>-<dataset>-<n>; refused if it holds a run."""
    if run_dir is not None:
        check_free(run_dir)
        folder = RunFolder(Path(run_dir).expanduser())
        make(folder, "run_dir")
        return folder
    n = 0
    while True:
        folder = RunFolder(Path("runs") / f"{gan}-{dataset}-{n}")
        try:
            folder.path.mkdir(parents=True)
        except FileExistsError:
            if not folder.path.parent.is_dir():
                raise UserError(f"run_dir={folder.path}: cannot write there (runs is a file); set run_dir=…") from None
            n += 1
            continue
        except OSError as error:
            raise UserError(f"run_dir={folder.path}: cannot write there ({error.strerror}); set run_dir=…") from None
        make(folder, "run_dir")
        return folder


def find_resumed(resume: str, run_dir: str | None) -> tuple[RunFolder, Path | None]:
    """(run folder, checkpoint to go on from, or None if it was killed before the first one)."""
    path = Path(resume).expanduser()
    if path.is_file():
        if path.parent.name != "checkpoints":
            raise UserError(f"resume={resume}: a checkpoint outside a run's checkpoints folder; give the run folder")
        start = path
        folder = RunFolder(path.parent.parent, start)
    elif path.is_dir():
        folder = RunFolder(path)
        latest = folder.checkpoints / "latest.pt"
        start = folder.start = latest if latest.exists() else None
        if start is None and not folder.config.exists():
            raise UserError(f"resume={resume}: holds no run (neither config.yaml nor checkpoints/latest.pt)")
    else:
        raise UserError(f"resume={resume}: no such run folder or checkpoint")
    if run_dir is not None and Path(run_dir).expanduser().resolve() != folder.path.resolve():
        raise UserError(f"run_dir={run_dir}: a resumed run goes on in its own folder {folder.path}; leave run_dir out")
    return folder, start


def lock(folder: RunFolder) -> int | None:
    """Keep other processes from training in the same folder; the kernel lets go when this one ends, however it ends.

    An open file descriptor of the folder itself (no lock file is left behind), or None where there is no flock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = os.open(folder.path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(f"{folder.path}: another process is training in this folder; wait for it, or stop it") from None
    except OSError:  # a file system without locks
        pass
    return handle


def cut_back(folder: RunFolder, step: int, images_seen: int) -> None:
    """Drop what lies past the checkpoint that the run goes on from, and what a kill left half written."""
    make(folder, "resume")
    checkpoint.clean(folder.checkpoints)
    checkpoint.clean(folder.samples)
    if folder.start is not None:  # an older one: a kill before the next save must not bring back what is dropped here
        checkpoint.link(folder.start, folder.checkpoints / "latest.pt")
    if folder.log.exists():
        JsonLines.cut(folder.log, step)
    cut_pictures(folder.samples, images_seen / 1000)
    for path in checkpoint.numbered(folder.checkpoints):
        if images_of(path) > images_seen:
            path.unlink()
