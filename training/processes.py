"""One process or several: who is first, how gradients are joined, and the device.

No DDP wrapper: after accumulation a phase's gradients travel in one flat reduce, which stays right with penalties, double
backward and several forwards, where DDP's hooks do not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor

from errors import UserError


def pick_device(name: str) -> torch.device:
    """``auto`` (CUDA, else MPS, else CPU) or a device name that this machine has."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name}: unknown device, allowed: auto, cpu, cuda, cuda:<n>, mps") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise UserError(f"device={name}: this machine has {count} usable CUDA devices; use device=cpu or device=auto")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps: not available on this machine; use device=cpu or device=auto")
    elif device.type not in ("cpu", "mps") or device.index:
        raise UserError(f"device={name}: not supported, allowed: auto, cpu, cuda, cuda:<n>, mps")
    return device


def use_tf32(allowed: bool) -> None:
    """Whether CUDA computes fp32 convolutions and matrix products in TF32 (10 bits of mantissa)."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


class Processes:
    """The group of processes started by ``torchrun`` or ``accelerate launch``; a group of one without them."""

    def __init__(self, device: str = "auto"):
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = pick_device(device)
        self._accelerator = None
        if self.count > 1:
            from accelerate import Accelerator, InitProcessGroupKwargs

            if self.device.index is not None:
                raise UserError(f"device={device}: with {self.count} processes each takes its own; use device=auto, cuda or cpu")
            # the first process alone makes pictures, trains a classifier, computes distances: the others wait that long
            patience = InitProcessGroupKwargs(timeout=timedelta(hours=6))
            self._accelerator = Accelerator(cpu=self.device.type == "cpu", mixed_precision="no", kwargs_handlers=[patience])
            self.device, self.rank = self._accelerator.device, self._accelerator.process_index

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def share(self, n: int) -> tuple[int, int]:
        """This process's samples first … last - 1 of a global batch of n."""
        return n * self.rank // self.count, n * (self.rank + 1) // self.count

    @torch.no_grad()
    def sum_(self, tensors: Sequence[Tensor], scale: float = 1.0) -> None:
        """Replace tensors of one dtype by their sum over processes times ``scale``, in one flat reduce."""
        if self._accelerator is None or not tensors:
            return
        flat = torch.cat([t.reshape(-1) for t in tensors])
        flat = self._accelerator.reduce(flat, "sum")
        if scale != 1.0:
            flat *= scale
        torch._foreach_copy_(list(tensors), [p.view_as(t) for p, t in zip(flat.split([t.numel() for t in tensors]), tensors)])

    def gather(self, tensor: Tensor, n: int) -> Tensor:
        """Join the processes' shares (see :meth:`share`) of a global batch of n along the first dimension."""
        if self._accelerator is None:
            return tensor
        longest = -(-n // self.count)
        if tensor.shape[0] < longest:
            tensor = torch.cat([tensor, tensor.new_zeros(longest - tensor.shape[0], *tensor.shape[1:])])
        parts = self._accelerator.gather(tensor.contiguous()).split(longest)
        sizes = [n * (r + 1) // self.count - n * r // self.count for r in range(self.count)]
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def broadcast(self, value: object) -> object:
        """The first process's value of a small picklable object, in every process."""
        if self._accelerator is None:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def wait(self) -> None:
        """A barrier."""
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()

    def close(self) -> None:
        """Leave the group, so that no process waits for one that is gone."""
        if self._accelerator is not None and torch.distributed.is_initialized():
            from accelerate.state import AcceleratorState

            torch.distributed.destroy_process_group()
            AcceleratorState._reset_state(True)  # or the next run of a sweep would believe the group still there
