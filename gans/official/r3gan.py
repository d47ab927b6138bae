"""brownvc/R3GAN (arXiv:2501.05441)."""

from __future__ import annotations

from torch import Tensor, nn

from errors import UserError
from gans.official.reader import StateReader, family
from nets.r3gan import Discriminator, Generator
from nets.resample import lowpass_kernel


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
