"""Downloads through torchvision that end, and leave nothing half done."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from errors import UserError

TIMEOUT = 30.0  # seconds without a byte after which a download is given up


def downloaded(
    title: str, root: Path, name: str, complete: Callable[[Path], bool], download: Callable[[Path], object], otherwise: str
) -> Path:
    """``root/name``, from an earlier download or a new one.

    ``download`` fills a temporary folder, in which ``name`` then lies; it is renamed afterwards. UserError, with what to do
    ``otherwise``, if it fails.
    """
    target = root / name
    if complete(target):
        return target
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision sets none and would wait for ever on a dead connection
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as temporary:
            with contextlib.redirect_stdout(io.StringIO()):  # its progress bar goes to stderr
                download(Path(temporary))
            if complete(target):  # another process was faster, and may be reading already
                return target
            if target.is_dir():  # an incomplete one
                shutil.copytree(Path(temporary) / name, target, dirs_exist_ok=True)
            else:
                os.replace(Path(temporary) / name, target)
    except Exception as error:  # of sockets, HTTP, archives, checksums and the helpers that torchvision calls
        if complete(target):  # another process was faster
            return target
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{title} could not be downloaded to {root} ({reason}): {otherwise}") from error
    finally:
        socket.setdefaulttimeout(timeout)
    return target
