"""Optimizers against golden numbers from plain formulas, and which options and schedules reach which parameter set."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from errors import UserError
from training.optimizers import OPTIMIZERS, SetOptimizer, build_optimizers, optimizer_fields

GOLDEN = Path(__file__).parent / "golden" / "optimizers.safetensors"
CPU = torch.device("cpu")
NAMES = {"lr": "lr", "b1": "beta1", "b2": "beta2", "eps": "eps", "wd": "weight_decay"}


def make(common, own=(), lazy=(), parameters=None):
    if parameters is None:
        parameters = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64))]
    options = {k: getattr(OPTIMIZERS[common["name"]](), k) for k in optimizer_fields(common["name"])}
    return SetOptimizer("critic", {**options, **common}, dict(own), parameters, CPU, list(lazy))


def group(optimizer):
    return optimizer.optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("case", "name"), [("sgd", "sgd"), ("adam", "adam"), ("adam_gan", "adam"), ("adam_l2", "adam"), ("adamw", "adamw")]
)
def test_golden_steps(case, name):
    tensors = load_file(GOLDEN)
    with safe_open(GOLDEN, "pt") as file:
        hyper = json.loads(file.metadata()["config"])["hyper"][case]
    parameters = [torch.nn.Parameter(tensors[f"in.w0.{i}"].clone()) for i in (0, 1)]
    defaults = {"weight_decay": 0.0} if "wd" not in hyper else {}
    optimizer = make({"name": name, **defaults, **{NAMES[k]: v for k, v in hyper.items()}}, parameters=parameters)
    for step in range(1, 6):
        for i, parameter in enumerate(parameters):
            parameter.grad = tensors[f"in.grad.step{step}.{i}"].clone()
        optimizer.optimizer.step()
        for i, parameter in enumerate(parameters):
            expected = tensors[f"out.{case}.step{step}.{i}"]
            assert (parameter.detach() - expected).abs().max() <= 1e-10 * expected.abs().max()


def test_momentum_of_sgd():
    """v <- m v + g; w <- w - lr v, closed form for a constant gradient."""
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = make({"name": "sgd", "lr": 0.1, "momentum": 0.5}, parameters=[parameter])
    for _ in range(3):
        parameter.grad = torch.ones(1, dtype=torch.float64)
        optimizer.optimizer.step()
    assert float(parameter.detach()) == pytest.approx(-0.1 * (1 + 1.5 + 1.75), rel=1e-12)


def test_rmsprop_in_closed_form():
    """v_t = a v + (1 - a) g^2; w <- w - lr g / (sqrt(v) + eps); weight decay enters the gradient."""
    lr, alpha, eps, decay = 0.05, 0.9, 1e-3, 0.1
    parameter = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    options = {"name": "rmsprop", "lr": lr, "alpha": alpha, "eps": eps, "weight_decay": decay}
    optimizer = make(options, parameters=[parameter])
    w, v = 2.0, 0.0
    for gradient in (0.3, -1.0, 0.7):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.optimizer.step()
        g = gradient + decay * w
        v = alpha * v + (1 - alpha) * g * g
        w -= lr * g / (v**0.5 + eps)
        assert float(parameter.detach()) == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_option_acts(name):
    """Each option of each optimizer changes where three steps end."""

    def end(**changes):
        parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        base = {"name": name, "lr": 0.1, **({"momentum": 0.3} if name == "sgd" else {})}
        optimizer = make({**base, **changes}, parameters=[parameter])
        for scale in (1.0, 0.1, -2.0):
            parameter.grad = scale * torch.tensor([1.0, 0.5])
            optimizer.optimizer.step()
        return parameter.detach()

    for option in optimizer_fields(name):
        value = {"lr": 0.2, "beta1": 0.7, "beta2": 0.5, "eps": 0.1, "weight_decay": 0.2, "momentum": 0.6, "alpha": 0.5}
        assert not torch.equal(end(), end(**{option: value.get(option, True)})), option


def test_scheduled_values_reach_the_optimizer():
    optimizer = make({"name": "adam", "lr": 0.2, "beta1": 0.5, "beta2": 0.9})
    optimizer.set_values({"lr": 0.1, "beta2": 0.99, "weight_decay": 0.3, "eps": 1e-4, "gamma": 7.0})
    assert group(optimizer)["lr"] == 0.1 and group(optimizer)["betas"] == (0.5, 0.99)
    assert group(optimizer)["weight_decay"] == 0.3 and group(optimizer)["eps"] == 1e-4
    rms = make({"name": "rmsprop", "lr": 0.2})
    rms.set_values({"alpha": 0.5, "momentum": 0.25})
    assert group(rms)["alpha"] == 0.5 and group(rms)["momentum"] == 0.25


def test_own_options_of_a_set():
    """An own lr follows the shape of the common schedule; an own beta stands still."""
    optimizer = make({"name": "adam", "lr": 0.2, "beta1": 0.5, "beta2": 0.9}, own={"lr": 0.4, "beta1": 0.0})
    assert group(optimizer)["lr"] == 0.4 and group(optimizer)["betas"] == (0.0, 0.9)
    optimizer.set_values({"lr": 0.05, "beta1": 0.3, "beta2": 0.99})
    assert group(optimizer)["lr"] == pytest.approx(0.1, rel=1e-12) and group(optimizer)["betas"] == (0.0, 0.99)


def test_lazy_regularizers_shorten_lr_and_betas():
    """c = k / (k + 1): lr * c, beta ** c (arXiv:1912.04958, appendix B)."""
    optimizer = make({"name": "adam", "lr": 0.2, "beta1": 0.5, "beta2": 0.9}, lazy=[4])
    for lr in (0.2, 0.1):
        optimizer.set_values({"lr": lr})
        assert group(optimizer)["lr"] == pytest.approx(lr * 4 / 5, rel=1e-12)
        assert group(optimizer)["betas"] == pytest.approx((0.5**0.8, 0.9**0.8), rel=1e-12)
    optimizer = make({"name": "adam", "lr": 0.2, "beta1": 0.0, "beta2": 0.99}, lazy=[16])
    assert group(optimizer)["lr"] == pytest.approx(0.2 * 16 / 17) and group(optimizer)["betas"][0] == 0.0


def test_reset_forgets_the_moments_but_not_the_options():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = make({"name": "adam", "lr": 0.1}, own={"beta2": 0.8}, lazy=[4], parameters=[parameter])
    parameter.grad = torch.ones(2)
    optimizer.optimizer.step()
    before = dict(group(optimizer))
    assert optimizer.optimizer.state
    optimizer.reset()
    assert not optimizer.optimizer.state
    for key in ("lr", "betas", "eps", "weight_decay"):
        assert group(optimizer)[key] == before[key]
    assert group(optimizer)["params"][0] is parameter


def test_building_by_set():
    sets = {name: [torch.nn.Parameter(torch.ones(1))] for name in ("generator", "critic")}
    optim = {"name": "adam", "lr": 0.1, "beta1": 0.0, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.0, "critic": {"lr": 0.4}}
    built = build_optimizers(optim, sets, {"critic": [4]}, CPU)
    assert group(built["generator"])["lr"] == 0.1 and group(built["critic"])["lr"] == pytest.approx(0.32)
    with pytest.raises(UserError, match="optim.critc: this GAN has no parameter set of that name, did you mean 'critic'?"):
        build_optimizers({**optim, "critc": {"lr": 1.0}}, sets, {}, CPU)


@pytest.mark.parametrize(("option", "value"), [("lr", -1.0), ("beta2", 1.0), ("eps", -1e-8), ("beta1", -0.1)])
def test_impossible_values(option, value):
    with pytest.raises(UserError, match=f"optim.{option}={value}: must "):
        make({"name": "adam", option: value})
    with pytest.raises(UserError, match=f"optim.critic.{option}={value}: must "):
        make({"name": "adam"}, own={option: value})
    with pytest.raises(UserError, match="optim=adan: unknown optimizer, did you mean"):
        optimizer_fields("adan")
