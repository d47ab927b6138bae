"""Batches of a store on disk, read by worker processes before they are needed."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

BATCHES = 4  # that each worker is ahead


class MappedImages(Dataset):
    """The images of a file, a batch at a time; opened in the process that reads it."""

    def __init__(self, file: Path, shape: tuple[int, ...]):
        self.file, self.shape = file, shape
        self._images: np.ndarray | None = None

    def __getitem__(self, indices: np.ndarray) -> Tensor:
        if self._images is None:
            self._images = np.asarray(np.memmap(self.file, np.uint8, "r", shape=self.shape))
        return torch.from_numpy(self._images[indices])  # numpy: no threads to start in a forked process

    def __getstate__(self) -> dict:
        return {"file": self.file, "shape": self.shape, "_images": None}


class Ahead:
    """Reads the batches of ``coming`` in that order in ``workers`` processes, into pinned memory for a CUDA device.

    Nothing depends on it but time: what :meth:`take` does not have is read by the caller, also when the workers die.
    """

    def __init__(self, file: Path, shape: tuple[int, ...], coming: Iterable[Tensor], workers: int, pin: bool):
        self.expected: deque[np.ndarray] = deque()
        loader = DataLoader(
            MappedImages(file, shape), batch_size=None, sampler=self._noted(coming), num_workers=workers, pin_memory=pin,
            prefetch_factor=BATCHES, worker_init_fn=_calm, generator=torch.Generator(),
        )  # fmt: skip
        self._batches: Iterator[Tensor] | None = None
        with _own_child_signals():
            self._batches = iter(loader)

    def _noted(self, coming: Iterable[Tensor]) -> Iterator[np.ndarray]:
        for indices in coming:
            self.expected.append(indices.numpy())
            yield self.expected[-1]

    def take(self, indices: Tensor) -> Tensor | None:
        """The images of ``indices`` if they are on their way; what was announced before them is dropped."""
        wanted = indices.numpy()
        place = next((k for k, announced in enumerate(self.expected) if np.array_equal(announced, wanted)), None)
        if place is None or self._batches is None:
            return None
        try:
            for _ in range(place + 1):
                self.expected.popleft()
                images = next(self._batches)
            return images
        except (RuntimeError, OSError, EOFError) as error:  # killed for memory, too little shared memory, …
            reason = " ".join(str(error).split())[:200]
            print(f"the data workers are lost ({reason}); reading goes on without them", file=sys.stderr, flush=True)
            self.close()
            return None

    def close(self) -> None:
        """End the worker processes."""
        self._batches = None  # the iterator's end is theirs
        self.expected.clear()


def _calm(_: int) -> None:
    """In a worker: Ctrl-C and a scheduler's SIGTERM reach the whole group, and the trainer needs batches to finish its step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _own_child_signals():
    """Undo the handler that torch installs, which raises wherever the program happens to be when a worker dies."""
    try:
        before = signal.getsignal(signal.SIGCHLD)
        yield
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)
    except ValueError:  # not the main thread: torch installs none either
        return
