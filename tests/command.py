"""Running train.py and sample.py as a user would, in this process or in one of their own."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from training import checkpoint, cli

ROOT = Path(__file__).resolve().parent.parent
TINY = (
    "gan.width=8", "gan.cardinality=2", "gan.blocks=1", "gan.z_dim=8", "gan.embedding_dim=4", "batch_size=8", "total_kimg=0.008",
    "eval.samples=0", "device=cpu", "sample.rows=2", "sample.columns=2", "log.every_kimg=0.008",
)  # fmt: skip
"""A run of one step of a network of a few thousand numbers."""


def with_tiny(options: tuple[str, ...]) -> list[str]:
    """``options`` over those of :data:`TINY`."""
    given = {option.lstrip("+~").split("=")[0] for option in options}
    return [option for option in TINY if option.split("=")[0] not in given] + list(options)


def train(*options: str) -> int:
    """train.py in this process on a tiny network; the exit status."""
    from training.main import train as job

    return cli.main(job, with_tiny(options))


def sample(*options: str) -> int:
    """sample.py in this process; the exit status."""
    from training.draw import sample as job

    return cli.simple_main(job, lambda: "usage", ["device=cpu", *options])


def script(name: str, *words: str, cwd: Path, **more) -> subprocess.CompletedProcess:
    """``python <name> <words>`` in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more.pop("environment", {})}
    return subprocess.run([sys.executable, str(ROOT / name), *words], cwd=cwd, env=environment, capture_output=True, text=True,
                          timeout=300, **more)  # fmt: skip


def the_error(capsys) -> str:
    """The one line on stderr since the last look, which must be an error message; nothing else may be there."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


def tree(folder: Path) -> list[str]:
    """Every file and folder below ``folder``, by relative path."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def log(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def make_zip(path: Path, n: int, resolution: int = 16, labels: list[int] | None = None, seed: int = 0) -> Path:
    """A dataset zip of ``n`` random RGB images."""
    rng = np.random.default_rng(seed)
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(n):
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (resolution, resolution, 3), dtype=np.uint8)).save(buffer, "PNG")
            archive.writestr(f"{i:04d}.png", buffer.getvalue())
        if labels is not None:
            archive.writestr("dataset.json", json.dumps({"labels": [[f"{i:04d}.png", label] for i, label in enumerate(labels)]}))
    return path


def refused(capsys, *options, run=train):
    """The error line of a refused start that left everything as it was."""
    before = tree(Path.cwd())
    assert run(*options) == 2
    assert tree(Path.cwd()) == before
    return the_error(capsys)


class Payload:
    """Pickled, a call of os.mkdir("pwned")."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


def foreign_files(whole: bytes) -> dict[str, bytes]:
    """Files that are no checkpoints of this project, by name."""
    folder = Path("making")
    folder.mkdir()
    with zipfile.ZipFile(folder / "zip", "w") as archive:
        archive.writestr("a/b.txt", "x")
    with tarfile.open(folder / "tar", "w") as archive:
        archive.add(folder / "zip")
    torch.save({"conv.weight": torch.zeros(3)}, folder / "state_dict")
    torch.save([1, 2], folder / "list")
    torch.save(torch.nn.Linear(2, 2), folder / "module")
    torch.save({"format": checkpoint.FORMAT, "config": Payload()}, folder / "crafted")
    torch.save({"format": checkpoint.FORMAT, "config": Payload()}, folder / "crafted_old", _use_new_zipfile_serialization=False)
    torch.save({"format": "gan-zoo checkpoint 0"}, folder / "version")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {
        "empty": b"", "text": b"not a checkpoint\n" * 9, "digits": b"12345", "zeros": bytes(999), "half": whole[:5000],
        "head": whole[:9], "tail": whole[-999:], "pickle": pickle.dumps({"a": 1}), "crafted_pickle": pickle.dumps(Payload()),
    }  # fmt: skip
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return files
