"""PatchGAN: golden numbers from an independent public implementation, and receptive fields measured by gradients."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nets.layers import SelfAttention
from nets.patch import FIELDS, PatchDiscriminator, logit_size
from nets.resize import DOWNSAMPLES


def load(net, tensors):
    """Official tensors, which lie in the order of the layers, into our network, whose parameters do too."""
    order = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    theirs = {key.split(".", 2)[2]: tensor for key, tensor in tensors.items() if key.startswith("state.")}
    keys = sorted(theirs, key=lambda key: (int(key.split(".")[0]), order.index(key.split(".")[1])))
    ours = list(net.state_dict())
    assert len(ours) == len(keys) + (net.receptive_field == 1)  # the official network of pixels has no bias at its end
    state = dict(zip(ours, (theirs[key] for key in keys)))
    net.load_state_dict(state if net.receptive_field > 1 else {**state, "head.bias": torch.zeros(1)})


def assert_near(found, expected, tol=1e-4):
    assert found.shape == expected.shape and (found - expected).abs().max() <= tol * expected.abs().max()


@pytest.mark.parametrize("case, field", [("nlayer", 70), ("pixel", 1)])
def test_equals_the_official_network(case, field):
    tensors = load_file(Path(__file__).parent / "golden" / f"patchgan_{case}.safetensors")
    net = PatchDiscriminator(8, 64, 6, field=field)
    load(net, tensors)
    images = tensors["in.x"]
    assert_near(net.eval()(images)[:, None], tensors["out.logit_eval" if field > 1 else "out.logit"])
    if field > 1:
        assert_near(net.train()(images)[:, None], tensors["out.logit_train"])


@pytest.mark.parametrize("downsample", DOWNSAMPLES)
@pytest.mark.parametrize("field", FIELDS)
def test_the_receptive_field_is_what_gradients_reach(field, downsample):
    """The pixels that one logit depends on form a square of ``receptive_field`` pixels, in an image large enough for it."""
    torch.manual_seed(0)
    resolution = 32 * -(-(2 * field + 64) // 32)
    net = PatchDiscriminator(1, resolution, 1, field=field, norm="none", downsample=downsample).double()
    assert net.receptive_field == {16: 18, 34: 40, 70: 84, 142: 172, 286: 348}.get(field, 1) if downsample == "fir" else field
    field = net.receptive_field
    for parameter in net.parameters():
        parameter.data.normal_(0, 1) if parameter.ndim == 1 else parameter.data.abs_().mul_(50)  # nothing cancels or vanishes
    images = torch.randn(1, 1, resolution, resolution, dtype=torch.float64, requires_grad=True)
    logits = net(images)
    middle = logits.shape[-1] // 2
    reached = torch.autograd.grad(logits[0, middle, middle], images)[0][0, 0] != 0
    rows, columns = reached.any(1).nonzero().flatten(), reached.any(0).nonzero().flatten()
    assert rows[0] > 0 and rows[-1] < resolution - 1 or field == 1
    assert (rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1) == (field, field) and reached.sum() == field**2


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("resolution", [16, 24, 28, 32, 64, 128])
def test_logit_size(field, resolution):
    size = logit_size(field, resolution)
    if size:
        net = PatchDiscriminator(1, resolution, 1, field=field)
        assert net(torch.randn(2, 1, resolution, resolution)).shape == (2, size, size)
    else:
        with pytest.raises(ValueError, match=f"a patch of {field} pixels needs larger images than {resolution}; allowed: 1, 16"):
            PatchDiscriminator(1, resolution, 1, field=field)


def test_known_sizes_and_unknown_fields():
    assert [logit_size(field, 64) for field in FIELDS] == [64, 30, 14, 6, 2, 0] and logit_size(70, 256) == 30
    for build in (lambda: logit_size(40, 64), lambda: PatchDiscriminator(1, 64, 3, field=40)):
        with pytest.raises(ValueError, match="a patch of 40 pixels is unknown; allowed: 1, 16, 34, 70, 142, 286"):
            build()


def test_options_act():
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    for field, size in ((1, 32), (34, 8)):
        net = PatchDiscriminator(2, 32, 3, field=field, attention=(size,), norm="layer").eval()
        gains = [m.gain for m in net.modules() if isinstance(m, SelfAttention)]
        before = net(images)
        assert len(gains) == 1
        gains[0].data.fill_(1)
        assert not torch.equal(before, net(images))
        with pytest.raises(ValueError, match="no feature map of 5 pixels"):
            PatchDiscriminator(2, 32, 3, field=field, attention=(5,))
    net = PatchDiscriminator(2, 32, 3, field=16, dropout=0.5)
    assert not torch.equal(net(images), net(images)) and torch.equal(net.eval()(images), net(images))
    for downsample in ("avg_pool", "fir"):
        assert PatchDiscriminator(2, 32, 3, downsample=downsample)(images).shape == (2, 2, 2)


def test_class_logits_are_averaged_over_patches():
    net = PatchDiscriminator(2, 32, 3, field=34, classes=5, class_head=True)
    features = net.features(torch.randn(2, 3, 32, 32))
    assert torch.allclose(net.class_logits(features), net.class_head(features).mean((2, 3))) and features.ndim == 4
