"""Weights of the papers' official code, from its state dict alone: key names and tensor shapes say everything.

``load_official("r3gan", state)`` returns a network of this project that computes the same function. Another family joins by
a function under ``@family("name")`` that reads the state through a :class:`StateReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from errors import UserError, nearest
from nets.r3gan import Discriminator, Generator
from nets.resample import lowpass_kernel

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


@family("r3gan")
def _r3gan(reader: StateReader, part: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """brownvc/R3GAN: ``MainLayers.<stage>.Layers.<i>`` is a transition or basis at one end of the stage, else a block."""
    reader.strip("Model.")
    generating = part == "generator"
    state: dict[str, Tensor] = {}
    widths, cardinalities, blocks, expansions = [], [], [], set()
    stages = 0
    while reader.has(f"MainLayers.{stages}."):
        stages += 1
    for i in range(stages):
        layers, ours = f"MainLayers.{i}.Layers", f"stages.{i}"
        index = 1 if generating else 0
        blocks.append(0)
        while reader.has(f"{layers}.{index}.LinearLayer1."):
            theirs, block = f"{layers}.{index}", f"{ours}.blocks.{blocks[-1]}"
            for number, name in enumerate(("expand", "mix", "project"), start=1):
                state[f"{block}.{name}.weight"] = reader.take(f"{theirs}.LinearLayer{number}.Layer.weight", 4)
                if name != "project":
                    state[f"{block}.{name}.bias"] = reader.take(f"{theirs}.NonLinearity{number}.Bias", 1)
            blocks[-1] += 1
            index += 1
        if not blocks[-1]:
            raise UserError(f"{reader.what}: the state dict has no tensor {layers}.{index}.LinearLayer1.Layer.weight")
        expand, mix = (state[f"{ours}.blocks.0.{name}.weight"] for name in ("expand", "mix"))
        widths.append(expand.shape[1])
        cardinalities.append(mix.shape[0] // max(1, mix.shape[1]))
        expansions.add(expand.shape[0] // max(1, expand.shape[1]))
        end = f"{layers}.{0 if generating else index}"
        if i == (0 if generating else stages - 1):
            basis, shape = (f"{end}.Basis", 3) if generating else (f"{end}.Basis.weight", 4)
            state["basis.basis"] = reader.take(basis, shape, lambda w: w[None] if w.ndim == 3 else w.transpose(0, 1))
            state["basis.linear.weight"] = reader.take(f"{end}.LinearLayer.weight", 2)
        else:
            reader.constant(f"{end}.Resampler.Kernel", lowpass_kernel())
            if reader.has(f"{end}.LinearLayer."):
                place = f"{ours}.before.0" if generating else f"{ours}.after.1"
                state[f"{place}.weight"] = reader.take(f"{end}.LinearLayer.Layer.weight", 4)
    theirs, ours = ("AggregationLayer", "to_rgb") if generating else ("ExtractionLayer", "from_rgb")
    rgb = state[f"{ours}.weight"] = reader.take(f"{theirs}.Layer.weight", 4)
    classes, embedding_dim = 0, 0
    if reader.has("EmbeddingLayer."):
        table = state["embedding.weight"] = reader.take("EmbeddingLayer.weight", 2, lambda w: w.t().contiguous())
        classes, embedding_dim = table.shape
    if len(expansions) != 1 or stages < 2:
        raise UserError(f"{reader.what}: {stages} stages with expansions {sorted(expansions)} are no network of this family")
    shape = dict(blocks=blocks, expansion=expansions.pop(), classes=classes, embedding_dim=embedding_dim)
    try:
        if generating:
            z_dim = state["basis.linear.weight"].shape[1] - embedding_dim
            return Generator(z_dim, widths, cardinalities, channels=rgb.shape[0], **shape), state
        return Discriminator(widths, cardinalities, channels=rgb.shape[1], **shape), state
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{reader.what}: the shapes contradict each other ({error})") from None
