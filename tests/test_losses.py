"""Adversarial losses against golden numbers, formulas in float64; shapes; the registry."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from errors import UserError
from losses import LOSSES, PENALTIES, build_loss, build_penalty

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


def test_every_loss_is_tested():
    assert {case.split()[0] for case in CASES} == set(LOSSES)


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
