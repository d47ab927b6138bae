"""pytorch/examples, dcgan (arXiv:1511.06434): one nn.Sequential ``main`` a network, of any depth, width and channels."""

from __future__ import annotations

from torch import Tensor, nn

from errors import UserError
from gans.official.reader import StateReader, family
from nets.dcgan import DCGANDiscriminator, DCGANGenerator

NORM = {"weight": 1, "bias": 1, "running_mean": 1, "running_var": 1, "num_batches_tracked": 0}
"""A batch norm's tensors and their dimensions."""


@family("dcgan")
def _dcgan(reader: StateReader, part: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Convolution, batch norm and activation are three places in ``main``; D's first stage has no norm, and takes two.

    The official D ends in a sigmoid, which has no tensors: this project's gives the logit before it.
    """
    reader.strip("module.")
    generating = part == "generator"
    state: dict[str, Tensor] = {}
    layer = "resize" if generating else "convolution"
    stages = place = 0
    while place < reader.last("main."):
        ours, normed = f"stages.{stages}", generating or stages > 0
        state[f"{ours}.{layer}.weight"] = reader.take(f"main.{place}.weight", 4)
        if normed:
            for name, dimensions in NORM.items():
                state[f"{ours}.norm.{name}"] = reader.take(f"main.{place + 1}.{name}", dimensions)
        stages, place = stages + 1, place + (3 if normed else 2)
    kernel = reader.take(f"main.{place}.weight", 4)
    if not stages:
        raise UserError(f"{reader.what}: one layer is no network of this family")
    state["output.0.weight" if generating else "head.weight"] = kernel
    first = state[f"stages.0.{layer}.weight"]
    base = (first if generating else kernel).shape[2]
    resolution = base * 2**stages
    try:
        if generating:
            return DCGANGenerator(first.shape[0], kernel.shape[0], resolution, kernel.shape[1]), state
        return DCGANDiscriminator(first.shape[0], resolution, first.shape[1]), state
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{reader.what}: the shapes contradict each other ({error})") from None
