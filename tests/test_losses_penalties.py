"""Gradient penalties against golden numbers (formulas in float64); weights, shapes, the gradient at zero."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from losses import PENALTIES, PenaltyPoint, build_penalty, squared_gradient_norm
from losses.penalties import gradient_norm

GOLDEN = load_file(Path(__file__).parent / "golden" / "penalties_tiny_critic.safetensors")
CASES = {
    "r1_half_gamma": ("r1", {"gamma": 10}, "real"),
    "r2_half_gamma": ("r2", {"gamma": 10}, "fake"),
    "wgan_gp_lambda10": ("wgan_gp", {"gp_lambda": 10}, "x_hat"),
    "wgan_gp_one_sided_lambda10": ("wgan_gp", {"one_sided": True}, "x_hat"),
    "zero_centred_gp_lambda10": ("wgan_gp", {"center": 0}, "x_hat"),
}


def critic_and_point(**changes):
    weights = {key: GOLDEN[f"state.{key}"].double().requires_grad_() for key in ("W1", "b1", "W2", "b2")}

    def critic(images, purpose="real"):
        seen[purpose] = images
        return (torch.tanh(images.flatten(1) @ weights["W1"].T + weights["b1"]) @ weights["W2"].T + weights["b2"]).squeeze(1)

    def draw(purpose, shape=(), kind="normal", high=0):
        assert (purpose, shape, kind) == ("mix", (1, 1, 1), "uniform")
        return GOLDEN["in.eps"].double()

    seen = {}
    real, fake = (GOLDEN[f"in.{side}"].double().requires_grad_() for side in ("real", "fake"))
    return weights, seen, PenaltyPoint(**{**dict(discriminator=critic, real=real, fake=fake, draw=draw), **changes})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("grad_scale", [1.0, 1024.0])
def test_golden(case, grad_scale):
    name, options, where = CASES[case]
    penalty = build_penalty({"name": name, **options})
    weights, seen, at = critic_and_point(grad_scale=grad_scale)
    values = penalty.values(at)
    (key,) = values
    torch.testing.assert_close(values[key].float(), GOLDEN[f"loss.{case}.per_sample"], rtol=1e-4, atol=1e-6)
    total = penalty.terms(values)[key].mean()
    torch.testing.assert_close(total.float(), GOLDEN[f"loss.{case}.total"], rtol=1e-4, atol=1e-6)
    point = seen["mix"] if where == "x_hat" else getattr(at, where)
    leaves = {"input": point, **{key: weights[key] for key in ("W1", "b1", "W2")}}
    for leaf, grad in zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True):
        torch.testing.assert_close(grad.float(), GOLDEN[f"grad.{case}.{leaf}"], rtol=1e-3, atol=1e-6)


def test_golden_critic_total():
    penalty = build_penalty({"name": "wgan_gp"})
    weights, _, at = critic_and_point()
    real_logits, fake_logits = at.discriminator(at.real, "real"), at.discriminator(at.fake, "fake")
    torch.testing.assert_close(real_logits.float(), GOLDEN["out.D_real"])
    total = (fake_logits - real_logits + penalty.terms(penalty.values(at))["gp"]).mean()
    torch.testing.assert_close(total.float(), GOLDEN["loss.wgan_gp_critic_total"])
    for key, grad in zip(weights, torch.autograd.grad(total, list(weights.values())), strict=True):
        torch.testing.assert_close(grad.float(), GOLDEN[f"grad.wgan_gp_critic_total.{key}"], rtol=1e-3, atol=1e-6)


def test_r1_r2_is_both_and_uses_the_logits_at_hand():
    penalty = build_penalty({"name": "r1_r2", "gamma": 10.0})
    _, seen, at = critic_and_point()
    at.real_logits, at.fake_logits = at.discriminator(at.real), at.discriminator(at.fake)
    seen.clear()
    terms = penalty.terms(penalty.values(at))
    assert not seen  # no forward of its own
    torch.testing.assert_close(terms["r1"].mean().float(), GOLDEN["loss.r1_half_gamma.total"])
    torch.testing.assert_close(terms["r2"].mean().float(), GOLDEN["loss.r2_half_gamma.total"])
    torch.testing.assert_close(penalty.terms({"r1": torch.ones(2)}, 3.0)["r1"], torch.full((2,), 1.5))


def test_one_sided_spares_norms_below_the_centre():
    norms = torch.tensor([0.5, 1.0, 3.0])
    assert PENALTIES["wgan_gp"]().value(norms).tolist() == [0.25, 0.0, 4.0]
    assert PENALTIES["wgan_gp"](one_sided=True).value(norms).tolist() == [0.0, 0.0, 4.0]


def test_weights_and_schedules():
    assert build_penalty({"name": "none"}).schedules() == {} and build_penalty({"name": "none"}).terms({}) == {}
    assert build_penalty({"name": "r1", "gamma": 3}).schedules() == {"gamma": 3.0}
    assert build_penalty({"name": "wgan_gp"}).schedules() == {"gp_lambda": 10.0}
    assert [PENALTIES[name]().differentiates for name in ("r1", "r2", "r1_r2")] == [("real",), ("fake",), ("real", "fake")]
    assert PENALTIES["wgan_gp"]().differentiates == () and PENALTIES["none"]().interval == 1


@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "none"])
def test_the_gradient_is_finite_where_the_norm_is_zero(name):
    flat = torch.zeros(3, requires_grad=True)
    at = PenaltyPoint(
        discriminator=lambda images, purpose: images.flatten(1)[:, :3] @ flat,
        real=torch.randn(4, 1, 2, 2, requires_grad=True),
        fake=torch.randn(4, 1, 2, 2, requires_grad=True),
        draw=lambda purpose, shape, kind: torch.rand(4, *shape),
    )
    penalty = PENALTIES[name]()
    sum(term.sum() for term in penalty.terms(penalty.values(at)).values()).backward()
    assert flat.grad.isfinite().all()


def test_low_precision_images_give_an_fp32_penalty():
    images = torch.randn(2, 1, 4, 4, dtype=torch.float16, requires_grad=True)
    logits = (images * 1e-4).square().sum((1, 2, 3)).float()  # this gradient underflows in fp16 ...
    norms = squared_gradient_norm(logits, images, grad_scale=2.0**14)  # ... and this does not
    assert norms.dtype == torch.float32
    expected = (2e-8 * images.detach().float()).square().sum((1, 2, 3))
    torch.testing.assert_close(norms, expected, rtol=0.05, atol=0)


def test_wrong_input_is_refused():
    images = torch.randn(4, 1, 2, 2, requires_grad=True)
    logits = images.sum((1, 2, 3))
    for function in (squared_gradient_norm, gradient_norm):
        with pytest.raises(ValueError, match="required grad"):
            function(logits, images.detach())
        with pytest.raises(ValueError, match=r"logits \(n,\)"):
            function(logits[:, None], images)
        with pytest.raises(ValueError, match=r"logits \(n,\)"):
            function(logits[:3], images)
