"""Measuring leaves no trace: what torch draws from and how it computes stays as the caller had it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def apart(device: torch.device | str = "cpu", threads: int | None = None) -> Iterator[None]:
    """Inside, torch's default generators (the CPU's and ``device``'s) may be drawn from and seeded, CPU threads are ``threads``,
    and CUDA computes in full fp32 (TF32 would move a distance in its third digit); afterwards all is as before."""
    device, before = torch.device(device), torch.get_num_threads()
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    states = [torch.cuda.current_device() if device.index is None else device.index] if device.type == "cuda" else []
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        with torch.random.fork_rng(devices=states):
            yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32
        if mps is not None:
            torch.mps.set_rng_state(mps)
