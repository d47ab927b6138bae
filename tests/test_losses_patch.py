"""Losses and the gradient penalty on patch logits, against golden numbers from an independent public implementation."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from losses import LOSSES, PenaltyPoint, build_loss, build_penalty, per_patch
from losses.penalties import gradient_norm

GOLDEN = load_file(Path(__file__).parent / "golden" / "junyanz_ganloss_gp.safetensors")
SPREAD = {"rtol": 1e-5, "atol": 1e-6}


def prediction():
    return GOLDEN["in.prediction"].squeeze(1).clone().requires_grad_()


def check(values: torch.Tensor, leaf: torch.Tensor, name: str, sign: float = 1.0, gradient: bool = True):
    """Value and gradient of ``sign`` times the mean over samples of patch means, which is the mean over all patches."""
    assert values.shape == (2,)
    torch.testing.assert_close(sign * values.mean(), GOLDEN[f"loss.{name}"], **SPREAD)
    if gradient:
        (found,) = torch.autograd.grad(sign * values.mean(), leaf, retain_graph=True)
        torch.testing.assert_close(found.unsqueeze(1), GOLDEN[f"grad.{name}"], rtol=1e-5, atol=1e-8)


def both(loss, name: str, factor: float = 1.0, gradient: bool = True):
    """D's loss of a prediction taken as real and as fake is the sum of the two, each side with its own gradient."""
    real, fake = prediction(), prediction()
    values = factor * per_patch(loss.discriminator, real, fake)
    torch.testing.assert_close(values.mean(), GOLDEN[f"loss.{name}.real"] + GOLDEN[f"loss.{name}.fake"], **SPREAD)
    if gradient:
        for side, found in zip(("real", "fake"), torch.autograd.grad(values.mean(), (real, fake)), strict=True):
            torch.testing.assert_close(found.unsqueeze(1), GOLDEN[f"grad.{name}.{side}"], rtol=1e-5, atol=1e-8)


def test_least_squares_is_half_of_the_mean_squared_error():
    leaf = prediction()
    both(build_loss({"name": "lsgan"}), "lsgan", factor=2.0)
    check(2 * per_patch(build_loss({"name": "lsgan"}).generator, None, leaf), leaf, "lsgan.real")
    check(2 * per_patch(build_loss({"name": "lsgan", "c": 0.0}).generator, None, leaf), leaf, "lsgan.fake")


def test_least_squares_with_labels_of_0_9_and_0_1():
    leaf, name = prediction(), "lsgan_labels0.9_0.1"
    both(build_loss({"name": "lsgan", "a": 0.1, "b": 0.9, "c": 0.9}), name, factor=2.0, gradient=False)
    for side, c in (("real", 0.9), ("fake", 0.1)):
        values = 2 * per_patch(build_loss({"name": "lsgan", "c": c}).generator, None, leaf)
        check(values, leaf, f"{name}.{side}", gradient=False)
        (found,) = torch.autograd.grad(values.mean(), leaf)
        torch.testing.assert_close(found, 2 * (leaf.detach() - c) / leaf.numel())


def test_vanilla():
    leaf = prediction()
    both(build_loss({"name": "minimax"}), "vanilla")
    check(per_patch(build_loss({"name": "nonsaturating"}).generator, None, leaf), leaf, "vanilla.real")
    check(per_patch(build_loss({"name": "minimax"}).generator, None, leaf), leaf, "vanilla.fake", sign=-1.0)


def test_wasserstein():
    leaf = prediction()
    both(build_loss({"name": "wasserstein"}), "wgangp")
    check(per_patch(build_loss({"name": "wasserstein"}).generator, None, leaf), leaf, "wgangp.real")
    check(per_patch(build_loss({"name": "wasserstein"}).generator, None, leaf), leaf, "wgangp.fake", sign=-1.0)


def critic():
    """A PatchGAN of two strided layers with instance norm: (n, 3, 32, 32) -> (n, 1, 6, 6)."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(4, 8, 4, 2, 1), nn.InstanceNorm2d(8), nn.LeakyReLU(0.2),
        nn.Conv2d(8, 16, 4, 1, 1), nn.InstanceNorm2d(16), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 1, 4, 1, 1),
    )  # fmt: skip
    model.load_state_dict({key.removeprefix("state.model."): GOLDEN[key] for key in GOLDEN if key.startswith("state.")})
    return model


def point(model: nn.Module, mix: torch.Tensor):
    return PenaltyPoint(  # the reference differentiates the sum over patches
        discriminator=lambda images, purpose: model(images).sum((1, 2, 3)),
        real=GOLDEN["in.real"],
        fake=GOLDEN["in.fake"],
        draw=lambda purpose, shape, kind: mix.view(3, *shape),
    )


MIXES = {"mixed": GOLDEN["in.alpha"], "real": torch.ones(3), "fake": torch.zeros(3)}


@pytest.mark.parametrize("where", MIXES)
def test_gradient_penalty(where):
    model = critic()
    at, penalty = point(model, MIXES[where]), build_penalty({"name": "wgan_gp"})
    images = penalty.points(at).requires_grad_()
    norms = gradient_norm(at.discriminator(images, "mix"), images)
    torch.testing.assert_close(norms, GOLDEN[f"out.gp_norm_{where}"], rtol=1e-4, atol=0)
    total = penalty.terms(penalty.values(at))["gp"].mean()
    torch.testing.assert_close(total, GOLDEN[f"loss.gp_{where}"], rtol=1e-4, atol=0)
    if where == "mixed":
        expected = {key.removeprefix("grad.gp_mixed.model."): GOLDEN[key] for key in GOLDEN if key.startswith("grad.gp_mixed")}
        parameters = dict(model.named_parameters())
        for key, found in zip(expected, torch.autograd.grad(total, [parameters[key] for key in expected]), strict=True):
            assert (found - expected[key]).abs().max() <= 1e-4 * expected[key].abs().max(), key
        zero_centred = build_penalty({"name": "wgan_gp", "gp_lambda": 1.0, "center": 0.0})
        total = zero_centred.terms(zero_centred.values(at))["gp"].mean()
        torch.testing.assert_close(total, GOLDEN["loss.gp_mixed_lambda1_constant0"], rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_patches_are_paired_by_sample_and_position(name):
    real, fake = torch.randn(2, 3, 4, 5, dtype=torch.float64).unbind(0)
    loss = build_loss({"name": name})
    if not loss.batch_coupled:
        for function in (loss.discriminator, loss.generator):
            by_hand = [torch.stack([function(real[i, :, k], fake[i, :, k]) for k in range(5)]).mean() for i in range(3)]
            torch.testing.assert_close(per_patch(function, real, fake), torch.stack(by_hand))
    else:  # the means are those of all patches
        expected = loss.discriminator(real.reshape(-1), fake.reshape(-1)).reshape(3, -1).mean(1)
        torch.testing.assert_close(per_patch(loss.discriminator, real, fake), expected)
    if loss.needs_real:
        with pytest.raises(ValueError, match="needs the real logits"):
            per_patch(loss.generator, None, fake)
    else:
        torch.testing.assert_close(per_patch(loss.generator, None, fake), per_patch(loss.generator, real, fake))


def test_wrong_shapes_of_patches_are_refused():
    loss = build_loss({"name": "hinge"})
    for real, fake in (((2, 3, 3), (2, 3, 4)), ((2,), (2,)), ((2, 1, 3, 3), (2, 1, 3, 3)), ((2, 3, 3), (2, 9)), ((2, 6), (2, 6))):
        with pytest.raises(ValueError, match=r"patch logits must be \(n, h, w\)"):
            per_patch(loss.discriminator, torch.zeros(real), torch.zeros(fake))
    with pytest.raises(ValueError, match=r"patch logits must be \(n, h, w\), all alike, found none"):
        per_patch(loss.generator, None)
    with pytest.raises(ValueError, match=r"one value for each, \(18,\), found \(\)"):
        per_patch(lambda real, fake: (real - fake).mean(), torch.zeros(2, 3, 3), torch.zeros(2, 3, 3))
