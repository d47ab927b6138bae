"""Reading a state dict key by key, and the registry of the families that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from errors import UserError


class StateReader:
    """A state dict that is used up key by key; what is missing, misshapen or left over is the user's error."""

    def __init__(self, what: str, state: Mapping[str, Tensor]):
        self.what = what
        self.left = {str(key): tensor for key, tensor in state.items()}
        self.origins: list[tuple[Tensor, str]] = []

    def strip(self, prefix: str) -> None:
        """Drop ``prefix`` if every key starts with it (a wrapper module)."""
        if self.left and all(key.startswith(prefix) for key in self.left):
            self.left = {key.removeprefix(prefix): tensor for key, tensor in self.left.items()}

    def has(self, prefix: str) -> bool:
        return any(key.startswith(prefix) for key in self.left)

    def last(self, prefix: str) -> int:
        """The largest of the numbers that follow ``prefix`` in the keys left, -1 if there is none."""
        numbers = (key.removeprefix(prefix).split(".")[0] for key in self.left if key.startswith(prefix))
        return max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def take(self, key: str, ndim: int, reshape: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Remove and return a tensor of ``ndim`` dimensions as float32, brought into this project's layout by ``reshape``."""
        if key not in self.left:
            raise UserError(f"{self.what}: the state dict has no tensor {key}")
        tensor = self.left.pop(key)
        if tensor.ndim != ndim:
            raise UserError(f"{self.what}: {key} must have {ndim} dimensions, found {tuple(tensor.shape)}")
        tensor = tensor.detach().float()
        tensor = tensor if reshape is None else reshape(tensor)
        self.origins.append((tensor, key))
        return tensor

    def origin(self, tensor: Tensor) -> str:
        """The key a taken tensor came from."""
        return next(key for other, key in self.origins if other is tensor)

    def constant(self, key: str, expected: Tensor) -> None:
        """Remove a buffer that must equal ``expected``."""
        found = self.take(key, expected.ndim)
        if found.shape != expected.shape or not torch.allclose(found.cpu(), expected, rtol=1e-4, atol=1e-6):
            raise UserError(f"{self.what}: {key} is not the filter that this model uses")

    def finish(self) -> None:
        if self.left:
            names = sorted(self.left)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(f"{self.what}: unexpected tensors {', '.join(names[:3])}{more}")


Importer = Callable[[StateReader, str], tuple[nn.Module, dict[str, Tensor]]]
FAMILIES: dict[str, Importer] = {}


def family(name: str) -> Callable[[Importer], Importer]:
    """Register a function (reader, part) -> (module, its state) under ``name``."""

    def register(function: Importer) -> Importer:
        FAMILIES[name] = function
        return function

    return register
