"""Official DCGAN weights: golden numbers from an independent public implementation (forward, statistics, gradients)."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from errors import UserError
from gans.official import load_official
from nets.dcgan import DCGANDiscriminator, DCGANGenerator

PARTS = ("generator", "discriminator")


def golden(part):
    tensors = load_file(Path(__file__).parent / "golden" / f"dcgan_{part}.safetensors")
    return tensors, {key.removeprefix("state."): tensor for key, tensor in tensors.items() if key.startswith("state.")}


def assert_near(found, expected, tol):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tol * expected.abs().max()


def run(net, tensors):
    return net(tensors["in.z"].flatten(1)) if "in.z" in tensors else net(tensors["in.x"]).sigmoid()


@pytest.mark.parametrize("part", PARTS)
def test_equals_the_official_network(part):
    tensors, state = golden(part)
    net = load_official("dcgan", state, part)
    assert not net.training and net.resolution == 64 and net.channels == 3
    assert len(net.state_dict()) == len(state)
    assert_near(run(net, tensors), tensors["out.eval"], 1e-4)
    assert_near(run(net.train(), tensors), tensors["out.train"], 1e-4)
    after = {key.removeprefix("out.state_after_train_forward."): t for key, t in tensors.items() if key.startswith("out.state_")}
    moved = load_official("dcgan", {**state, **after}, part).state_dict()
    assert len(after) == 3 * sum("running_mean" in key for key in moved) > 0
    for key, tensor in net.state_dict().items():
        if "norm." in key:
            assert_near(tensor.double(), moved[key].double(), 1e-4)


def test_gradients_of_the_official_discriminator():
    tensors, state = golden("discriminator")
    net = load_official("dcgan", state, "discriminator").train()
    logits = net(tensors["in.x"])
    assert_near(F.softplus(-logits).mean(), tensors["loss.bce_real"], 1e-4)
    assert_near(F.softplus(logits).mean(), tensors["loss.bce_fake"], 1e-4)
    F.softplus(-logits).mean().backward()
    first, norm, head = net.stages[0].convolution.weight, net.stages[1].norm.weight, net.head.weight
    for parameter, key in ((first, "main.0.weight"), (norm, "main.3.weight"), (head, "main.11.weight")):
        assert_near(parameter.grad, tensors[f"grad.bce_real.{key}"], 1e-3)


def official_keys(net):
    """The state of one of our networks under the official names."""
    generating, state = isinstance(net, DCGANGenerator), {}
    layer = "resize" if generating else "convolution"
    for i, stage in enumerate(net.stages):
        place = 3 * i - (not generating and i > 0)
        state[f"main.{place}.weight"] = getattr(stage, layer).weight
        for key, tensor in stage.norm.state_dict().items():
            state[f"main.{place + 1}.{key}"] = tensor
    place = 3 * len(net.stages) - (not generating)
    state[f"main.{place}.weight"] = net.output[0].weight if generating else net.head.weight
    return state


@pytest.mark.parametrize("resolution, channels", [(8, 1), (28, 1), (32, 3), (128, 3)])
def test_any_depth_and_width_is_read_from_shapes(resolution, channels):
    g, d = DCGANGenerator(7, 3, resolution, channels).eval(), DCGANDiscriminator(2, resolution, channels).eval()
    wrapped = {f"module.{key}": tensor for key, tensor in official_keys(g).items()}
    read_g, read_d = load_official("dcgan", wrapped), load_official("dcgan", official_keys(d), "discriminator")
    assert (read_g.z_dim, read_g.resolution, read_d.resolution) == (7, resolution, resolution)
    z = torch.randn(2, 7)
    images = g(z)
    assert torch.equal(images, read_g(z)) and torch.equal(d(images), read_d(images))


@pytest.mark.parametrize("part, other", [PARTS, PARTS[::-1]])
def test_what_does_not_fit_is_named(part, other):
    def refused(message, change):
        state = golden(part)[1]
        change(state)
        with pytest.raises(UserError) as error:
            load_official("dcgan", state, part)
        assert message in str(error.value) and "\n" not in str(error.value)

    def put(key, *shape):
        return lambda state: state.update({key: torch.zeros(shape)})

    conv, norm, last = ("main.3", "main.4", "main.12") if part == "generator" else ("main.2", "main.3", "main.11")
    for key in (f"{conv}.weight", f"{norm}.weight", f"{norm}.running_var", f"{last}.weight"):
        refused(f"official dcgan {part}: the state dict has no tensor {key}", lambda state, key=key: state.pop(key))
    refused(f"unexpected tensors {conv}.bias", put(f"{conv}.bias", 32))
    refused("unexpected tensors extra", put("extra", 1))
    refused(f"{norm}.weight does not fit", put(f"{norm}.weight", 5))
    refused(f"{conv}.weight must have 4 dimensions, found (3, 3)", put(f"{conv}.weight", 3, 3))
    refused(f"{conv}.weight does not fit", put(f"{conv}.weight", 32, 16, 3, 3))
    end = "main.0" if part == "generator" else last
    refused("contradict each other", put(f"{end}.weight", 16, 64, 9, 9))
    refused("no tensor main.0.weight", lambda state: state.clear())
    refused("one layer is no network", lambda state: (state.clear(), put("main.0.weight", 4, 4, 4, 4)(state)))
    with pytest.raises(UserError, match=f"official dcgan {other}"):
        load_official("dcgan", golden(part)[1], other)
