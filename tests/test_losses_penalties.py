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
    torch.testing.assert_close(point.float(), GOLDEN[f"in.{where}"])
    leaves = {"input": point, **{key: weights[key] for key in ("W1", "b1", "W2")}}
    for leaf, grad in zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True):
        torch.testing.assert_close(grad.float(), GOLDEN[f"grad.{case}.{leaf}"], rtol=1e-3, atol=1e-6)


def test_golden_critic_total():
    penalty = build_penalty({"name": "wgan_gp"})
    weights, _, at = critic_and_point()
    real_logits, fake_logits = at.discriminator(at.real, "real"), at.discriminator(at.fake, "fake")
    torch.testing.assert_close(real_logits.float(), GOLDEN["out.D_real"])
    torch.testing.assert_close(fake_logits.float(), GOLDEN["out.D_fake"])
    total = (fake_logits - real_logits + penalty.terms(penalty.values(at))["gp"]).mean()
    torch.testing.assert_close(total.float(), GOLDEN["loss.wgan_gp_critic_total"])
    for key, grad in zip(weights, torch.autograd.grad(total, list(weights.values())), strict=True):
        torch.testing.assert_close(grad.float(), GOLDEN[f"grad.wgan_gp_critic_total.{key}"], rtol=1e-3, atol=1e-6)


def test_every_golden_number_is_compared():
    compared = {f"loss.{case}.{what}" for case in CASES for what in ("per_sample", "total")}
    compared |= {f"grad.{case}.{leaf}" for case in CASES for leaf in ("input", "W1", "b1", "W2")}
    compared |= {f"grad.wgan_gp_critic_total.{key}" for key in ("W1", "b1", "W2", "b2")} | {"loss.wgan_gp_critic_total"}
    assert {key for key in GOLDEN if key.startswith(("loss.", "grad."))} == compared


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


DRAGAN_OPTIONS = [{}, {"one_sided": True, "center": 1.3}, {"center": 0.0, "gp_lambda": 3.0}, {"noise": 2.0}, {"noise": 0.0}]


@pytest.mark.parametrize("options", DRAGAN_OPTIONS, ids=str)
def test_dragan_against_a_written_out_computation_and_finite_differences(options):
    generator = torch.Generator().manual_seed(0)
    draws = {
        "dragan_alpha": torch.rand(6, 1, 1, 1, dtype=torch.float64, generator=generator),
        "dragan_u": torch.rand(6, 2, 3, 3, dtype=torch.float64, generator=generator),
    }

    def draw(purpose, shape=(), kind="normal", high=0):
        assert (6, *shape) == draws[purpose].shape and kind == "uniform"
        return draws[purpose]

    weights, seen, at = critic_and_point(draw=draw)
    penalty = build_penalty({"name": "dragan", **options})
    values = penalty.values(at)
    total = penalty.terms(values)["gp"].mean()

    x = at.real.detach()
    flat = x.flatten().tolist()
    mean = sum(flat) / len(flat)
    std = (sum((value - mean) ** 2 for value in flat) / len(flat)) ** 0.5
    x_hat = torch.stack([
        x[i] + draws["dragan_alpha"][i].item() * options.get("noise", 0.5) * std * draws["dragan_u"][i] for i in range(6)
    ])  # fmt: skip
    torch.testing.assert_close(seen["mix"].detach(), x_hat, rtol=1e-12, atol=1e-12)

    def by_hand(w1, b1, w2):
        excess = []
        for i in range(6):
            slope = 1 - torch.tanh(w1 @ x_hat[i].flatten() + b1).square()  # of tanh, in each hidden unit
            norm = (w1.T @ (w2[0] * slope)).square().sum().sqrt()
            excess.append(norm - options.get("center", 1.0))
        excess = torch.stack(excess)
        return (excess.clamp(min=0) if options.get("one_sided") else excess).square()

    leaves = [weights[key] for key in ("W1", "b1", "W2")]
    plain = [leaf.detach().clone() for leaf in leaves]
    torch.testing.assert_close(values["gp"].detach(), by_hand(*plain), rtol=1e-10, atol=1e-12)
    if options.get("one_sided"):
        assert 0 < (values["gp"] == 0).sum() < 6  # some norms on either side of the centre
    for leaf, gradient in zip(plain, torch.autograd.grad(total, leaves), strict=True):
        for place in range(0, leaf.numel(), 5):
            entry, sums, h = leaf.view(-1)[place : place + 1], [], 1e-6
            for step in (h, -2 * h, h):  # up, down, and back
                entry += step
                sums.append(options.get("gp_lambda", 10.0) * by_hand(*plain).mean().item())
            difference = (sums[0] - sums[1]) / (2 * h)
            assert gradient.reshape(-1)[place].item() == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_only_dragan_couples_the_samples_of_a_batch():
    assert [name for name in PENALTIES if PENALTIES[name].batch_coupled] == ["dragan"]
    images = torch.full((1, 1, 1, 1), 0.3)  # one value: its deviation is 0, not NaN
    at = PenaltyPoint(
        discriminator=lambda images, purpose: images.sum((1, 2, 3)),
        real=images,
        fake=images,
        draw=lambda purpose, shape, kind: torch.full((1, *shape), 0.5),
    )
    assert torch.equal(PENALTIES["dragan"]().points(at), images) and PENALTIES["dragan"]().values(at)["gp"].tolist() == [0.0]


def test_one_sided_spares_norms_below_the_centre():
    norms = torch.tensor([0.5, 1.0, 3.0])
    assert PENALTIES["wgan_gp"]().value(norms).tolist() == [0.25, 0.0, 4.0]
    assert PENALTIES["wgan_gp"](one_sided=True).value(norms).tolist() == [0.0, 0.0, 4.0]


def test_weights_and_schedules():
    assert build_penalty({"name": "none"}).schedules() == {} and build_penalty({"name": "none"}).terms({}) == {}
    assert build_penalty({"name": "r1", "gamma": 3}).schedules() == {"gamma": 3.0}
    for name in ("wgan_gp", "dragan"):
        assert build_penalty({"name": name}).schedules() == {"gp_lambda": 10.0}
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
    assert flat.grad.isfinite().all() and flat.grad.count_nonzero() == 0


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
