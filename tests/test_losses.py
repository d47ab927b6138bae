"""Adversarial losses against golden numbers, formulas in float64; shapes; the registry."""

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file

from errors import UserError
from losses import FORMS, LOSSES, PENALTIES, build_loss, build_penalty

ROOT = Path(__file__).parent.parent
GOLDEN = load_file(Path(__file__).parent / "golden" / "losses_logits.safetensors")
CASES = {  # golden name of D's and of G's loss
    "minimax": ("minimax", "minimax_saturating", {}),
    "nonsaturating": ("minimax", "nonsaturating", {}),
    "wasserstein": ("wasserstein", "wasserstein", {}),
    "lsgan": ("lsgan_half", "lsgan_half", {}),
    "lsgan -1 1 0": ("lsgan_m101_half", "lsgan_m101_half", {"a": -1, "b": 1, "c": 0.0}),
    "hinge": ("hinge", "hinge", {}),
    "relativistic": ("rpgan", "rpgan", {}),
    "relativistic_average": ("ragan", "ragan", {}),
}


def logits():
    return GOLDEN["in.real_logits"].double().requires_grad_(), GOLDEN["in.fake_logits"].double().requires_grad_()


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    d_name, g_name, options = CASES[case]
    loss = build_loss({"name": case.split()[0], **options})
    for key, function in ((f"{d_name}.D", loss.discriminator), (f"{g_name}.G", loss.generator)):
        real, fake = logits()
        values = function(real, fake)
        assert values.shape == (6,)
        values.mean().backward()
        torch.testing.assert_close(values.mean().float(), GOLDEN[f"loss.{key}"], rtol=1e-5, atol=1e-6)
        for side, leaf in (("real", real), ("fake", fake)):
            if f"grad.{key}.{side}" in GOLDEN:
                torch.testing.assert_close(leaf.grad.float(), GOLDEN[f"grad.{key}.{side}"], rtol=1e-5, atol=1e-7)
            else:
                assert leaf.grad is None


def test_every_loss_and_every_golden_number_is_tested():
    assert {case.split()[0] for case in CASES} == set(LOSSES)
    stems = {f"{d}.D" for d, _, _ in CASES.values()} | {f"{g}.G" for _, g, _ in CASES.values()}
    compared = {f"loss.{stem}" for stem in stems} | {f"grad.{stem}.{side}" for stem in stems for side in ("real", "fake")}
    assert {key for key in GOLDEN if not key.startswith("in.")} <= compared


OPTIONS = [
    *({"name": name} for name in LOSSES),
    *({"name": name, "label_smoothing": 0.1} for name in ("minimax", "nonsaturating")),
    *({"name": name, "form": form} for name in ("relativistic", "relativistic_average") for form in FORMS),
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options.values())))
def test_logits_of_30_and_minus_40_in_fp32(options):
    """Values and gradients are finite, and the loss in float64 to 7 digits: nothing overflows or is swallowed by a 1."""
    pairs = list(itertools.product((30.0, -40.0, 0.5), repeat=2))
    loss = build_loss(options)
    for function in (loss.discriminator, loss.generator):
        results = []
        for dtype in (torch.float32, torch.float64):
            real, fake = torch.tensor(pairs, dtype=dtype).T.clone().requires_grad_().unbind(0)
            values = function(real, fake)
            gradients = torch.autograd.grad(values.sum(), (real, fake), allow_unused=True)
            results.append([values, *(g for g in gradients if g is not None)])
        for low, high in zip(*results, strict=True):
            assert low.isfinite().all()
            torch.testing.assert_close(low.double(), high, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["minimax", "nonsaturating"])
@pytest.mark.parametrize("s", [0.0, 0.1, 0.3, 0.99])
def test_label_smoothing_lowers_the_target_of_reals_alone(name, s):
    loss, plain = build_loss({"name": name, "label_smoothing": s}), build_loss({"name": name})
    real, fake = torch.linspace(-5, 5, 11, dtype=torch.float64), torch.linspace(3, -4, 11, dtype=torch.float64)
    real.requires_grad_()
    values = loss.discriminator(real, fake)
    p, q = real.sigmoid(), fake.sigmoid()
    torch.testing.assert_close(values, -(1 - s) * p.log() - s * (1 - p).log() - (1 - q).log(), rtol=1e-12, atol=1e-12)
    target = torch.full_like(real, 1 - s)
    expected = F.binary_cross_entropy_with_logits(real, target, reduction="none") + F.softplus(fake)
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(values.sum(), real)
    torch.testing.assert_close(gradient, p.detach() - (1 - s), rtol=1e-12, atol=1e-12)
    assert torch.equal(loss.generator(None, fake), plain.generator(None, fake))
    # the boundary is where the best D stands when real and fake are equally likely
    x = torch.tensor([loss.boundary], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss.discriminator(x, x).sum(), x)
    assert abs(gradient.item()) < 1e-12 and (s > 0 or loss.boundary == 0)


WRITTEN_OUT = {
    "softplus": lambda d: math.log(1 + math.exp(-d)),
    "hinge": lambda d: max(0.0, 1 - d),
    "least_squares": lambda d: (d - 1) ** 2,
}


def relativistic_by_hand(average: bool, form: str, side: str, real: list[float], fake: list[float]) -> list[float]:
    f, n = WRITTEN_OUT[form], len(real)
    if side == "generator":  # the generator's loss is the discriminator's with real and fake exchanged
        real, fake = fake, real
    if average:
        return [f(r - sum(fake) / n) + f(sum(real) / n - x) for r, x in zip(real, fake, strict=True)]
    return [f(r - x) for r, x in zip(real, fake, strict=True)]


@pytest.mark.parametrize("side", ["discriminator", "generator"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["relativistic", "relativistic_average"])
def test_relativistic_forms(name, form, side):
    real, fake = [1.5, -0.3, 2.2, 0.1, -3.0], [0.2, 0.9, -1.1, 0.4, 2.5]
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (real, fake)]
    values = getattr(build_loss({"name": name, "form": form}), side)(*leaves)
    by_hand = relativistic_by_hand(name == "relativistic_average", form, side, real, fake)
    torch.testing.assert_close(values, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    gradients, h = torch.autograd.grad(values.sum(), leaves), 1e-6
    for which, gradient in enumerate(gradients):
        for i in range(5):
            sums = []
            for step in (h, -h):
                moved = [list(real), list(fake)]
                moved[which][i] += step
                sums.append(sum(relativistic_by_hand(name == "relativistic_average", form, side, *moved)))
            assert gradient[i].item() == pytest.approx((sums[0] - sums[1]) / (2 * h), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_wrong_shapes_are_refused(name):
    loss = build_loss({"name": name})
    for real, fake in (((3,), (4,)), ((4, 1), (4,)), ((4,), (4, 1)), ((4, 1), (4, 1)), ((1,), (4,)), ((), ())):
        with pytest.raises(ValueError, match=r"logits must be \(n,\)"):
            loss.discriminator(torch.zeros(real), torch.zeros(fake))
    with pytest.raises(ValueError, match=r"logits must be \(n,\)"):
        loss.generator(torch.zeros(4, 1), torch.zeros(4, 1))
    if loss.needs_real:
        with pytest.raises(ValueError, match="needs the real logits"):
            loss.generator(None, torch.zeros(4))
    else:
        assert loss.generator(None, torch.zeros(4)).shape == (4,)


def test_losses_are_finite_at_extreme_logits():
    real, fake = torch.tensor([1e4, -1e4, 0.0]), torch.tensor([-1e4, 1e4, 0.0])
    for name in LOSSES:
        loss = build_loss({"name": name})
        assert loss.discriminator(real, fake).isfinite().all() and loss.generator(real, fake).isfinite().all()


@pytest.mark.parametrize(
    "build, options, message",
    [
        (build_loss, {"name": "relativistc"}, "loss.name=relativistc is unknown; did you mean 'relativistic'?"),
        (build_loss, {}, "loss.name=None is unknown; allowed: hinge, lsgan"),
        (build_loss, {"name": "hinge", "margin": 1}, "loss.margin is not an option of loss=hinge; allowed: none"),
        (build_loss, {"name": "lsgan", "a": "zero"}, "loss.a='zero' must be a number"),
        (build_loss, {"name": "lsgan", "a": True}, "loss.a=True must be a number"),
        (build_loss, {"name": "lsgan", "a": float("nan")}, "loss.a=nan must be a number"),
        (build_loss, {"name": "minimax", "label_smoothing": 1}, "loss.label_smoothing=1.0 must be at least 0 and below 1"),
        (build_loss, {"name": "nonsaturating", "label_smoothing": -0.1}, "loss.label_smoothing=-0.1 must be at least 0"),
        (build_loss, {"name": "relativistic", "form": "hinje"}, "loss.form=hinje is unknown; did you mean 'hinge'?"),
        (build_loss, {"name": "relativistic_average", "form": "x"}, "loss.form=x is unknown; allowed: hinge, least_squares"),
        (build_loss, {"name": "relativistic", "form": 1}, "loss.form=1 must be a name"),
        (build_penalty, {"name": "dragan", "noise": -1}, "penalty.noise=-1.0 must not be negative"),
        (build_penalty, {"name": "r1r2"}, "penalty.name=r1r2 is unknown; did you mean 'r1_r2'?"),
        (build_penalty, {"name": "r1", "gama": 1}, "penalty.gama is not an option of penalty=r1; did you mean 'gamma'?"),
        (build_penalty, {"name": "r1", "interval": 1.5}, "penalty.interval=1.5 must be a whole number"),
        (build_penalty, {"name": "r1", "interval": 0}, "penalty.interval=0 must be at least 1"),
        (build_penalty, {"name": "r1", "gamma": -1}, "penalty.gamma=-1.0 must not be negative"),
        (build_penalty, {"name": "wgan_gp", "one_sided": 1}, "penalty.one_sided=1 must be true or false"),
    ],
)
def test_bad_options(build, options, message):
    with pytest.raises(UserError) as error:
        build(options)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("group, registry, build", [("loss", LOSSES, build_loss), ("penalty", PENALTIES, build_penalty)])
def test_every_name_has_a_config_file_that_builds_its_defaults(group, registry, build):
    files = {path.stem: path for path in (ROOT / "configs" / group).glob("*.yaml")}
    assert set(files) == set(registry)
    for name, path in files.items():
        options = yaml.safe_load(path.read_text())
        assert options["name"] == name and build(options) == build({"name": name}) == registry[name]()
