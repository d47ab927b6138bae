"""R3GAN's training step against golden numbers from an independent public implementation; its options; its phases."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stub_batch import StubBatch, spec

from errors import UserError
from gans.base import Clock
from gans.official import load_official
from gans.r3gan import R3GAN, R3GANOptions, stage_widths
from losses import build_loss, build_penalty

PARTS = {"G": "generator", "D": "discriminator"}


def golden(name):
    return load_file(Path(__file__).parent / "golden" / f"r3gan_{name}.safetensors")


def under(tensors, prefix):
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def toy(resolution=8, channels=1, classes=3, loss=None, penalty=None, **options):
    torch.manual_seed(0)
    options = R3GANOptions(**{**dict(width=8, cardinality=2, blocks=1, z_dim=6, embedding_dim=5), **options})
    loss, penalty = build_loss(loss or {"name": "relativistic"}), build_penalty(penalty or {"name": "r1_r2"})
    return R3GAN(options, spec(resolution, channels, classes), loss, penalty)


def from_golden(state_of, gamma, conditional):
    """The golden networks under R3GAN's phases; ``state_of(part)`` gives their official state."""
    gan = toy(penalty={"name": "r1_r2", "gamma": gamma})
    gan.generator, gan.discriminator = (load_official("r3gan", state_of(key), part) for key, part in PARTS.items())
    gan.z_dim, gan.conditional = gan.generator.z_dim, conditional
    return gan.train()


def in_our_layout(gradients, state, part):
    """Official gradients by our parameter names (only those that are given)."""
    marked = load_official("r3gan", {**{key: torch.full_like(t, torch.nan) if "Kernel" not in key else t
                                        for key, t in state.items()}, **gradients}, PARTS[part])  # fmt: skip
    return {name: p.detach() for name, p in marked.named_parameters() if not p.isnan().any()}


def assert_near(found, expected, tolerance):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def assert_gradients(net, expected, tolerance=1e-4):
    for name, gradient in expected.items():
        assert_near(net.get_parameter(name).grad, gradient, tolerance)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", ["cond", "uncond"])
def test_golden_training_step(case, channels_last):
    tensors = golden(f"trainstep_{case}")
    labels = tensors["in.y"].argmax(1) if case == "cond" else None
    states = {part: under(tensors, f"state.{part}.") for part in PARTS}
    gan = from_golden(states.get, 0.05, conditional=case == "cond")
    if channels_last:
        gan.to(memory_format=torch.channels_last)
    batches = {part: StubBatch(tensors[f"in.{part}.real"], labels, {"z": tensors[f"in.{part}.z"]}) for part in PARTS}

    terms = gan.discriminator_loss(batches["D"])
    assert_near(terms["adversarial"], tensors["loss.D.adversarial"], 1e-5)
    assert_near(batches["D"].reports["r1"], tensors["loss.D.r1"], 1e-4)
    assert_near(batches["D"].reports["r2"], tensors["loss.D.r2"], 1e-4)
    reports = batches["D"].reports
    assert_near(reports["logits_real"] - reports["logits_fake"], tensors["loss.D.relativistic_logits"], 1e-5)
    total = sum(terms.values())
    assert_near(total, tensors["loss.D.total_per_sample"], 1e-4)
    total.mean().backward()
    assert all(p.grad is None for p in gan.generator.parameters())
    assert_gradients(gan.discriminator, in_our_layout(under(tensors, "grad.D."), states["D"], "D"))

    gan.zero_grad(set_to_none=True)
    (term,) = gan.generator_loss(batches["G"]).values()
    assert_near(term, tensors["loss.G.adversarial"], 1e-5)
    term.mean().backward()
    assert_gradients(gan.generator, in_our_layout(under(tensors, "grad.G."), states["G"], "G"))

    gan.zero_grad(set_to_none=True)
    gan.set_progress(Clock(), {"gamma": 40.0})  # a schedule's value wins over the option; the loss is weighted by 1/2
    (0.5 * sum(gan.discriminator_loss(batches["D"]).values())).mean().backward()
    expected = in_our_layout(under(tensors, "grad.D_gamma40_scale0.5."), states["D"], "D")
    assert len(expected) >= 7
    assert_gradients(gan.discriminator, expected)


def test_golden_three_iterations():
    """Schedules, Adam and EMA written out by hand around the phases."""
    tensors = golden("loop3_uncond")
    gan = from_golden(lambda part: under(tensors, f"state.{part}."), 0.05, conditional=False)
    ema = load_official("r3gan", under(tensors, "state.G."))
    optimizers = {part: torch.optim.Adam(getattr(gan, name).parameters(), eps=1e-8) for part, name in PARTS.items()}
    for it, (_, lr, beta2, gamma, _, ema_beta) in enumerate(tensors["out.schedule"].tolist()):
        gan.set_progress(Clock(it, 4 * it), {"gamma": gamma})
        for part, phase in zip("DG", gan.phases(), strict=True):
            batch = StubBatch(tensors[f"in.it{it}.{part}.real"], None, {"z": tensors[f"in.it{it}.{part}.z"]})
            gan.zero_grad(set_to_none=True)
            terms = phase.loss(batch)
            assert_near(terms["adversarial"], tensors[f"loss.it{it}.{part}.adversarial"], 1e-4)
            for name in ("r1", "r2") if part == "D" else ():
                assert_near(batch.reports[name], tensors[f"loss.it{it}.D.{name}"], 1e-3)
            sum(terms.values()).mean().backward()
            for group in optimizers[part].param_groups:
                group.update(lr=lr, betas=(0.0, beta2))
            optimizers[part].step()
        with torch.no_grad():
            for average, parameter in zip(ema.parameters(), gan.generator.parameters(), strict=True):
                average.copy_(parameter.lerp(average, ema_beta))
    lr = tensors["out.schedule"][:, 1].max().item()
    after = {"G": gan.generator, "D": gan.discriminator, "EMA": ema}
    prefixes = {key.split(".")[2] for key in tensors if key.startswith("out.state.")}
    assert len(prefixes) == 3
    for prefix in sorted(prefixes):
        net = after["EMA" if "ema" in prefix.lower() else prefix]
        kernels = {key: t for key, t in under(tensors, f"state.{prefix[0]}.").items() if "Kernel" in key}
        official = {**kernels, **under(tensors, f"out.state.{prefix}.")}
        expected = load_official("r3gan", official, PARTS[prefix[0]])
        a, b = (torch.cat([p.detach().flatten() for p in n.parameters()]) for n in (net, expected))
        difference = (a - b).abs()
        assert (difference > 1e-5).float().mean() <= 1e-3 and difference.max() <= 2 * lr * 3


def test_bfloat16_step_is_close():
    tensors = golden("trainstep_cond")
    states = {part: under(tensors, f"state.{part}.") for part in PARTS}
    gan = from_golden(states.get, 40.0, conditional=True).to(memory_format=torch.channels_last)
    batch = StubBatch(tensors["in.D.real"], tensors["in.y"].argmax(1), {"z": tensors["in.D.z"]}, grad_scale=8.0)
    results = []
    for dtype in (None, torch.bfloat16):
        gan.set_precision(dtype)
        gan.zero_grad(set_to_none=True)
        terms = gan.discriminator_loss(batch)
        assert all(term.dtype == torch.float32 for term in terms.values())
        sum(terms.values()).mean().backward()
        results.append(torch.cat([p.grad.flatten() for p in gan.discriminator.parameters()]))
    assert not torch.equal(*results)
    assert (results[0] - results[1]).norm() < 0.05 * results[0].norm()


def test_a_batch_and_what_becomes_of_it():
    gan = toy()
    batch = StubBatch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
    terms = gan.discriminator_loss(batch)
    assert list(terms) == ["adversarial", "r1", "r2"] and all(term.shape == (4,) for term in terms.values())
    assert {"logits_real", "logits_fake", "sign_real", "real_above_fake", "r1", "r2"} == set(batch.reports)
    assert torch.equal(terms["r1"].detach(), 0.5 * batch.reports["r1"])
    above = batch.reports["logits_real"] > batch.reports["logits_fake"]
    assert torch.equal(batch.reports["real_above_fake"], above.float())
    assert torch.equal(batch.reports["sign_real"], (batch.reports["logits_real"] > 0).float())
    assert set(batch.augmented) == {"real", "fake"} and batch.augmented["fake"].is_leaf
    assert not batch.images.requires_grad
    gan.generator_loss(batch)["adversarial"].sum().backward()
    assert all(p.grad is not None for p in gan.generator.parameters())
    assert gan.schedules() == {"gamma": 1.0, "instance_noise": 0.0}
    assert gan.sample(torch.randn(2, 6), torch.tensor([0, 1])).shape == (2, 1, 8, 8)


def test_the_penalty_sees_images_before_augmentation():
    class Doubling(StubBatch):
        def augment(self, images, purpose):
            return 2 * images

    gan = toy(classes=0)
    labels = torch.tensor([0, 1, 2, 0])  # data may have labels that an unconditional model does not use
    images = torch.randn(4, 1, 8, 8)
    batch = Doubling(images, labels)
    gan.discriminator_loss(batch)
    leaf = (2 * images).requires_grad_()
    (gradient,) = torch.autograd.grad(gan.discriminator(leaf).sum(), leaf)
    torch.testing.assert_close(batch.reports["r1"], 4 * gradient.square().sum((1, 2, 3)))


def test_no_graph_is_built_where_none_is_needed():
    gan = toy()
    batch = StubBatch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
    gan.discriminator_loss(batch)
    assert batch.with_graph == {"z": False, "real": True, "fake": True}
    gan.generator_loss(batch)
    assert batch.with_graph == {"z": True, "real": False, "fake": True}


def test_the_penalty_gets_the_grad_scale(monkeypatch):
    gan, seen = toy(), []
    monkeypatch.setattr(type(gan.penalty), "values", lambda self, at: seen.append(at.grad_scale) or {})
    gan.discriminator_loss(StubBatch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]), grad_scale=256.0))
    assert seen == [256.0]


def test_grad_scale_cancels():
    gan = toy()
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    terms = [gan.discriminator_loss(StubBatch(images, labels, grad_scale=scale))["r2"] for scale in (1.0, 1000.0)]
    torch.testing.assert_close(*terms)


def test_a_lazy_penalty_is_a_phase_of_its_own():
    gan = toy(penalty={"name": "r1_r2", "gamma": 3.0, "interval": 4})
    main, generator, lazy = gan.phases()
    assert (lazy.name, lazy.trains, lazy.interval, lazy.lazy) == ("penalty", "discriminator", 4, True)
    batch = StubBatch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
    assert list(main.loss(batch)) == ["adversarial"] and not main.lazy and main.interval == 1
    terms = lazy.loss(batch)
    eager = toy(penalty={"name": "r1_r2", "gamma": 3.0}).discriminator_loss(batch)
    for name in ("r1", "r2"):
        torch.testing.assert_close(terms[name], 4 * eager[name])


@pytest.mark.parametrize(
    "loss, penalty, names",
    [
        ("wasserstein", {"name": "wgan_gp"}, ["adversarial", "gp"]),
        ("hinge", {"name": "none"}, ["adversarial"]),
        ("nonsaturating", {"name": "r1", "interval": 2}, ["adversarial"]),
        ("relativistic_average", {"name": "r2"}, ["adversarial", "r2"]),
    ],
)
def test_other_losses_and_penalties(loss, penalty, names):
    gan = toy(loss={"name": loss}, penalty=penalty)
    batch = StubBatch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
    for phase in gan.phases():
        batch.augmented.clear()
        terms = phase.loss(batch)
        sum(term.mean() for term in terms.values()).backward()
        if phase.name == "discriminator":
            assert list(terms) == names
            assert ("mix" in batch.augmented) == (penalty["name"] == "wgan_gp")
        if phase.name == "generator":
            assert ("real" in batch.augmented) == gan.loss.needs_real
    assert all(p.grad.isfinite().all() for p in gan.parameters())


def test_widths_of_the_official_recipes():
    def widths(resolution, **options):
        return stage_widths(R3GANOptions(**options), spec(resolution))

    assert widths(32) == ([768] * 4, [96] * 4)
    assert widths(64) == ([768] * 4 + [384], [96] * 4 + [48])
    assert widths(256) == ([768] * 4 + [384, 192, 96], [96] * 4 + [48, 24, 12])
    assert widths(64, width=1536, full_width_stages=5) == ([1536] * 5, [96] * 5)
    assert widths(8) == ([768] * 2, [96] * 2)


def test_precision_and_sizes_follow_the_options():
    gan = toy(resolution=64, full_width_stages=4, low_precision_stages_g=2, low_precision_stages_d=1)
    assert gan.generator.resolution == gan.discriminator.resolution == 64
    assert [s.blocks[0].expand.weight.shape[1] for s in gan.generator.stages] == [8, 8, 8, 8, 4]
    assert [s.blocks[0].expand.weight.shape[1] for s in gan.discriminator.stages] == [4, 8, 8, 8, 8]
    gan.set_precision(torch.bfloat16)
    assert [s.dtype is not None for s in gan.generator.stages] == [False, False, False, True, True]
    assert [s.dtype is not None for s in gan.discriminator.stages] == [True, False, False, False, False]
    assert gan.generator.embedding.weight.shape == (3, 5) and gan.discriminator.embedding.weight.shape == (3, 8)
    assert toy(classes=0).conditional is False and toy(conditional=False).generator.classes == 0


@pytest.mark.parametrize(
    "options, data, message",
    [
        ({}, {"resolution": 28}, "gan=r3gan needs a power-of-two resolution from 8; dataset toy has 28: set dataset.resolution"),
        ({}, {"resolution": 4}, "dataset toy has 4: set dataset.resolution, e.g. 8"),
        ({"conditional": True}, {"classes": 0}, "gan.conditional=true needs labels, and dataset toy has none"),
        ({"cardinality": 3}, {}, "gan.width=8 must be a multiple of gan.cardinality=3"),
        ({"full_width_stages": 1}, {"resolution": 32}, "gan.cardinality=2 cannot be halved 3 times"),
        ({"width": 6, "full_width_stages": 1}, {"resolution": 16}, "gan.width=6 cannot be halved 2 times"),
        ({"blocks": 0}, {}, "gan.blocks=0 must be at least 1"),
        ({"z_dim": 0}, {}, "gan.z_dim=0 must be at least 1"),
        ({"low_precision_stages_d": -1}, {}, "gan.low_precision_stages_d=-1 must not be negative"),
    ],
)
def test_bad_options(options, data, message):
    with pytest.raises(UserError) as error:
        toy(**options, **data)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_options_are_plain_values():
    assert replace(R3GANOptions(), width=4).width == 4 and R3GAN.Options is R3GANOptions
