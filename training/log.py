"""The log of a run, one JSON object a line, and the names of files that belong to a moment of training."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from errors import UserError


def kimg_name(images_seen: int) -> str:
    """``kimg00020`` for 20,000 images seen, ``kimg00020.512`` for 20,512.

    One name for each count. Names sort by count below 100,000 kimg. File names made of them do so too unless whole and
    fractional kimg of the same thousand meet ("kimg00020.512.png" < "kimg00020.png"): sort files by :func:`images_of`.
    """
    kimg, rest = divmod(int(images_seen), 1000)
    if kimg < 0:
        raise ValueError(f"images_seen must not be negative, got {images_seen}")
    return f"kimg{kimg:05d}" + (f".{rest:03d}" if rest else "")


def images_of(name: str | Path) -> int:
    """Images seen, from a name that starts with what :func:`kimg_name` gave: ``kimg00020.512.png`` -> 20512.

    What follows (an extension, ``-ema``) is ignored, and so are folders before it. ValueError for any other name.
    """
    match = re.match(r"kimg(\d{5,})(?:\.(\d{3}))?(?!\.?\d)", Path(name).name)
    if match is None:
        raise ValueError(f"'{name}' is not a name like kimg00020 or kimg00020.512")
    return int(match[1]) * 1000 + int(match[2] or 0)


def kimg_name_of(path: str | Path) -> str | None:
    """The :func:`kimg_name` that ``path`` starts with, or None if it starts with none."""
    try:
        return kimg_name(images_of(path))
    except ValueError:
        return None


def cut_pictures(folder: str | Path, kimg: float) -> list[Path]:
    """Delete ``kimg*.png`` in ``folder`` made after ``kimg`` (thousands of images); returns what was deleted.

    A run that goes on from a checkpoint makes these pictures again. Files whose names say no count are left alone.
    """
    deleted = []
    for path in sorted(Path(folder).glob("kimg*.png")):
        try:
            late = images_of(path) > round(kimg * 1000)
        except ValueError:
            continue
        if late:
            path.unlink()
            deleted.append(path)
    return deleted


def _plain(value: Any) -> Any:
    """``value`` as JSON can say it: tensors and numpy scalars as numbers, non-finite floats as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # torch tensors, numpy arrays and scalars
        return _plain(value.tolist())
    return str(value)  # paths, dtypes, devices


def _parse(line: bytes) -> dict[str, Any] | None:
    """The JSON object on ``line``, or None if it does not hold one."""
    try:
        record = json.loads(line)
    except ValueError:  # also UnicodeDecodeError
        return None
    return record if isinstance(record, dict) else None


class JsonLines:
    """Append-only log, one JSON object a line.

    A line reaches the file in one write as soon as it is made, so that a reader (or ``tail -f``) sees whole lines and a
    killed run loses at most the line it was writing. A half-written last line is removed when the log is opened again.
    Non-finite numbers become null: NaN is not JSON.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend_tail(self.path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record``: str keys; numbers, strings, None, and lists, mappings, tensors and arrays of these."""
        line = (json.dumps(_plain(record), allow_nan=False) + "\n").encode()
        while line:  # a single write, unless the disk is nearly full
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def cut(path: str | Path, step: int) -> int:
        """Drop the lines that a run at ``step`` has not reached: "step" greater than ``step``; returns how many.

        Unreadable lines (a half-written last one) go too, lines without "step" stay. The new log replaces the old one in
        one move. Nothing happens if there is no log.
        """
        path = Path(path)
        if not path.exists():
            return 0
        kept, dropped = [], 0
        lines = path.read_bytes().splitlines()
        for line in filter(bytes.strip, lines):
            record = _parse(line)
            at = None if record is None else record.get("step")
            if record is None or (isinstance(at, int | float) and at > step):
                dropped += 1
            else:
                kept.append(line)
        if dropped:
            part = path.with_name(f".{path.name}.tmp")
            with open(part, "wb") as file:
                file.writelines(line + b"\n" for line in kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        return dropped

    @staticmethod
    def read(path: str | Path) -> list[dict[str, Any]]:
        """All records in order; a half-written last line is left out, a missing file is an empty log.

        UserError names the first line before the last that holds no JSON object.
        """
        path = Path(path)
        if not path.exists():
            return []
        lines = path.read_bytes().splitlines()
        records = []
        for number, line in enumerate(lines, start=1):
            record = _parse(line)
            if record is not None:
                records.append(record)
            elif line.strip() and number < len(lines):
                raise UserError(f"{path}: line {number} is not a JSON object; remove the line")
        return records


def _mend_tail(path: Path) -> None:
    """End the file with a line break: after a last line that only lacks it, or before a half-written one, which goes."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(path, "r+b") as file:
        tail_start, tail = file.seek(0, os.SEEK_END), b""
        while tail_start > 0 and b"\n" not in tail:  # back to the last line break, a block at a time
            block = min(1 << 16, tail_start)
            tail_start = file.seek(tail_start - block)
            tail = file.read(block) + tail
        if tail.endswith(b"\n"):
            return
        tail_start += tail.rfind(b"\n") + 1
        tail = tail[tail.rfind(b"\n") + 1 :]
        if _parse(tail) is None:
            file.truncate(tail_start)
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
