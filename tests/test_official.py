"""Reading official weights: shapes alone give the network; what does not fit is named in one line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from errors import UserError
from gans.official import load_official

BLOCK = "MainLayers.1.Layers.1.LinearLayer2.Layer.weight"
KERNEL = "MainLayers.1.Layers.{}.Resampler.Kernel"


def state(part, case="cond"):
    tensors = load_file(Path(__file__).parent / "golden" / f"r3gan_{part}_{case}.safetensors")
    return {key.removeprefix("state."): tensor for key, tensor in tensors.items() if key.startswith("state.")}


@pytest.mark.parametrize("part", ["generator", "discriminator"])
@pytest.mark.parametrize("case", ["cond", "uncond"])
def test_everything_is_read_once(part, case):
    official = state(part, case)
    net = load_official("r3gan", official, part)
    parameters = [tensor for key, tensor in official.items() if not key.endswith("Kernel")]
    assert sum(p.numel() for p in net.parameters()) == sum(t.numel() for t in parameters)
    assert len(list(net.parameters())) == len(parameters)
    assert net.classes == (10 if case == "cond" else 0) and net.channels == 3 and net.resolution == 16 and not net.training
    wrapped = {f"Model.{key}": tensor for key, tensor in official.items()}
    for a, b in zip(net.parameters(), load_official("r3gan", wrapped, part).parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("part, other", [("generator", "discriminator"), ("discriminator", "generator")])
def test_what_does_not_fit_is_named(part, other):
    def refused(message, change, family="r3gan", part=part):
        changed = state(part if part in ("generator", "discriminator") else "generator")
        change(changed)
        with pytest.raises(UserError) as error:
            load_official(family, changed, part)
        assert message in str(error.value) and "\n" not in str(error.value)

    def put(key, shape):
        return lambda changed: changed.update({key: torch.zeros(shape)})

    end = 0 if part == "generator" else 2
    refused("family=r3gn; did you mean 'r3gan'?", lambda changed: None, family="r3gn")
    refused("part=encoder is unknown", lambda changed: None, part="encoder")
    refused(f"no tensor {BLOCK}", lambda changed: changed.pop(BLOCK))
    refused(f"no tensor {KERNEL.format(end)}", lambda changed: changed.pop(KERNEL.format(end)))
    refused("unexpected tensors mapping.fc0.weight", put("mapping.fc0.weight", (3, 3)))
    refused(f"{BLOCK} does not fit: found (48, 8, 5, 5), expected (48, 8, 3, 3)", put(BLOCK, (48, 8, 5, 5)))
    refused(f"{BLOCK} must have 4 dimensions", put(BLOCK, (48, 8, 9)))
    refused(f"{KERNEL.format(end)} is not the filter", put(KERNEL.format(end), (4, 4)))
    refused("unexpected tensors MainLayers.", put(f"MainLayers.1.Layers.{end}.LinearLayer.Layer.weight", (24, 24, 1, 1)))
    transition = "MainLayers.2.Layers.0.LinearLayer" if part == "generator" else "MainLayers.0.Layers.2.LinearLayer"
    refused("no tensors for stages.", lambda changed: changed.pop(f"{transition}.Layer.weight"))
    refused("no tensor", lambda changed: changed.clear())
    with pytest.raises(UserError, match=f"official r3gan {other}"):
        load_official("r3gan", state(part), other)
