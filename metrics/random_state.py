"""Measuring leaves no trace: what torch draws from and how it computes stays as the caller had it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def apart(device: torch.device | str = "cpu", threads: int | None = None) -> Iterator[None]:
    """Inside, torch's default generators (the CPU's and ``device``'s) may be drawn from and seeded; afterwards they are as
    before, as is the number of CPU threads, which is ``threads`` inside."""
    device, before = torch.device(device), torch.get_num_threads()
    states = [torch.cuda.current_device() if device.index is None else device.index] if device.type == "cuda" else []
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.random.fork_rng(devices=states):
            yield
    finally:
        torch.set_num_threads(before)
        if mps is not None:
            torch.mps.set_rng_state(mps)
