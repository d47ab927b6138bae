"""Weights of the papers' official code, from its state dict alone: key names and tensor shapes say everything.

``load_official("r3gan", state)`` returns a network of this project that computes the same function. Another family joins by
a file with a function under ``@family("name")`` that reads the state through a :class:`StateReader`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from errors import UserError, nearest
from gans.official import dcgan, r3gan  # noqa: F401  (they join FAMILIES)
from gans.official.reader import FAMILIES, StateReader, family

PARTS = ("generator", "discriminator")


def load_official(family: str, state_dict: Mapping[str, Tensor], part: str = "generator") -> nn.Module:
    """The generator, called (z, labels), or discriminator, called (images, labels), of an official state dict, in eval mode.

    UserError, naming the key, for an unknown family or part and for missing, unexpected or misshapen tensors.
    """
    if family not in FAMILIES:
        raise UserError(f"no official weights can be read for family={family}; {nearest(family, FAMILIES)}")
    if part not in PARTS:
        raise UserError(f"part={part} is unknown; {nearest(part, PARTS)}")
    reader = StateReader(f"official {family} {part}", state_dict)
    module, state = FAMILIES[family](reader, part)
    reader.finish()
    own = module.state_dict()
    if own.keys() != state.keys():  # a layer that the shapes of the others call for is missing, or one they exclude is there
        extra = [reader.origin(state[key]) for key in state.keys() - own.keys()]
        problem = f"unexpected tensors {', '.join(sorted(extra))}" if extra else "no tensors for"
        raise UserError(f"{reader.what}: {problem} {'' if extra else ', '.join(sorted(own.keys() - state.keys()))}".rstrip())
    for key, tensor in own.items():
        if tensor.shape != state[key].shape:
            found, expected = tuple(state[key].shape), tuple(tensor.shape)
            raise UserError(f"{reader.what}: {reader.origin(state[key])} does not fit: found {found}, expected {expected}")
    module.load_state_dict(state)
    return module.eval()


__all__ = ["FAMILIES", "PARTS", "StateReader", "family", "load_official"]
