"""gan=dcgan (arXiv:1511.06434): one iteration against golden numbers from an independent public implementation, the paper's
networks, and the fakes that both phases share."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gan
import torch
import toy_run
from safetensors.torch import load_file
from test_official_dcgan import official_keys
from torch import nn

import training.engine
from data import Spec
from gans.official import load_official
from training.draws import Draws
from training.processes import Processes

PARTS = {"G": "generator", "D": "discriminator"}


class GoldenData:
    """The golden batch, whatever is asked for."""

    spec = Spec("golden", 64, 3, 0)

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def batch(self, indices):
        return self.images, None


def near(found, expected, tolerance):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def test_golden_iteration(monkeypatch):
    """D(real), D(fake without G's graph), step D; D(fake) with the new D, step G. G runs once."""
    tensors = load_file(Path(__file__).parent / "golden" / "dcgan_one_iteration.safetensors")
    monkeypatch.setattr(training.engine, "to_float", lambda images: images)
    monkeypatch.setattr(Draws, "draw", lambda self, purpose, *_: tensors["in.z"].flatten(1))
    options = {"z_dim": 16, "width_g": 4, "width_d": 4}
    gan = tiny_gan.build("dcgan", options, 64, 3)
    for part, name in PARTS.items():
        prefix = f"state.{part}."
        official = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        getattr(gan, name).load_state_dict(load_official("dcgan", official, name).state_dict())
    config = tiny_gan.config("dcgan", options, ema_half_life=0.0)
    assert config.optim == {"name": "adam", "lr": 2e-4, "beta1": 0.5, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    engine = training.engine.Engine(gan, GoldenData(tensors["in.real"]), config, Processes("cpu"))

    forwards, judged, gradients, update = [], [], {}, engine._update
    gan.generator.register_forward_hook(lambda *_: forwards.append(torch.is_grad_enabled()))
    logits = gan.discriminator.logits
    gan.discriminator.logits = lambda *args: (judged.append(logits(*args)), judged[-1])[1]

    def spy(phase):
        network = getattr(gan, phase.trains)
        found = {p.data_ptr(): p.grad.clone() for p in network.parameters()}
        for key, tensor in official_keys(network).items():
            gradients[phase.trains[0].upper(), key] = found.get(tensor.data_ptr())
        others = [p for name, parameters in engine.sets.items() if name != phase.trains for p in parameters]
        assert all(p.grad is None for p in others)
        update(phase)

    engine._update = spy
    engine.step()

    assert forwards == [True]
    assert len(judged) == 3  # real and fake, then the fake again with D's new weights
    for found, sign, expected in zip(judged, (-1, 1, -1), ("D_real", "D_fake", "G"), strict=True):
        near(nn.functional.softplus(sign * found).mean(), tensors[f"loss.{expected}"], 1e-5)
    means = engine.pop_means()
    assert means["discriminator/loss"] == pytest.approx(float(tensors["loss.D_real"] + tensors["loss.D_fake"]), rel=1e-5)
    assert means["generator/loss"] == pytest.approx(float(tensors["loss.G"]), rel=1e-5)
    golden = [name for name in tensors if name.startswith("grad.")]
    assert len(golden) == 6
    for name in golden:
        _, part, key = name.split(".", 2)
        near(gradients[part, key], tensors[name], 1e-4)
    checked = 0
    for part, name in PARTS.items():
        for key, found in official_keys(getattr(gan, name)).items():
            expected = tensors.get(f"out.state.{part}.{key}")
            if expected is None:
                continue
            checked += 1
            if "running" in key:
                near(found, expected, 1e-5)
            else:  # the first step of Adam is lr * sign(g): where g is about 0 the sign is chance
                difference = (found - expected).abs()
                assert difference.max() <= 2 * 2e-4 and (difference > 1e-5).float().mean() <= 1e-3
    assert checked == 8


def test_the_papers_networks():
    """No pooling and no fully connected layer; BatchNorm in both, but not on G's image and D's input; no bias before it."""
    gan = tiny_gan.build("dcgan", {"z_dim": 100, "width_g": 64, "width_d": 64}, 64, 3)
    assert not any(isinstance(m, nn.Linear | nn.MaxPool2d | nn.AvgPool2d) for m in gan.modules())
    for network, activation, norms in ((gan.generator, nn.ReLU, 4), (gan.discriminator, nn.LeakyReLU, 3)):
        modules = list(network.modules())
        assert sum(isinstance(m, nn.BatchNorm2d) for m in modules) == norms
        convolutions = [m for m in modules if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
        assert len(convolutions) == 5 and all(m.bias is None for m in convolutions)
        assert all(0.019 < m.weight.std() < 0.021 and m.weight.mean().abs() < 1e-3 for m in convolutions[:-1])
        assert sum(type(m) is activation for m in modules) == 4
    assert all(m.negative_slope == 0.2 for m in gan.discriminator.modules() if isinstance(m, nn.LeakyReLU))
    count = [sum(p.numel() for p in network.parameters()) for network in (gan.generator, gan.discriminator)]
    assert count == [3_576_704, 2_765_568]  # of pytorch/examples at 64 px
    assert isinstance(gan.generator.output[-1], nn.Tanh)


# one forward of G for two phases ---------------------------------------------------------------------------------------------


def dcgan(options=None, **changes):
    return tiny_gan.engine("dcgan", options, **{"resolution": 16, "batch_size": 8, **changes})


def statistics(network):
    return [b.clone() for name, b in network.named_buffers() if "running" in name or "tracked" in name]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("penalty", ["none", "r1_r2"])
@pytest.mark.parametrize("generator", ["dcgan", "resnet"])
def test_micro_batches_do_not_change_gradients(generator, penalty):
    options = {"norm_g": "none", "norm_d": "none", "generator": generator, "width_g": 3, "width_d": 3}
    whole, parts = (toy_run.all_gradients(dcgan(options, penalty=penalty, micro_batch=m)) for m in (None, 4))
    assert len(whole) >= 9 and whole.keys() == parts.keys()
    for name, gradient in whole.items():
        near(parts[name], gradient, 1e-5)


@pytest.mark.parametrize("micro_batch", [None, 4, 3])
def test_statistics_move_once_a_micro_batch(micro_batch):
    """... in D's phase, and not again when G's phase makes the fakes anew."""
    engine = dcgan(micro_batch=micro_batch)
    generator, seen, forwards = engine.gan.generator, [], []
    generator.register_forward_hook(lambda *_: forwards.append(1))
    phase = engine.phases[1]
    engine.phases[1] = replace(phase, loss=lambda batch: (seen.append(statistics(generator)), phase.loss(batch))[1])
    engine.step()
    seen.append(statistics(generator))
    count = {None: 1, 4: 2, 3: 3}[micro_batch]
    assert len(forwards) == (1 if micro_batch is None else 2 * count)
    assert int(generator.stages[0].norm.num_batches_tracked) == count
    assert len(seen) == count + 1 and all(same(seen[0], other) for other in seen)


@pytest.mark.parametrize("options", [{"shortcut": "identity", "survival": 0.3}, {"generator": "resnet", "survival": 0.3}, {}])
def test_made_anew_the_fakes_are_the_same(options):
    """The masks of stochastic depth come again, and so do the statistics of the micro-batch."""
    engine = dcgan(options, resolution=32, micro_batch=4)
    fakes = []
    engine.gan.generator.register_forward_hook(lambda module, z, fake: fakes.append(fake.detach().clone()))
    engine.step()
    first, second, *again = fakes
    assert len(again) == 2 and torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, second)
    before, fakes[:] = [first, second], []
    engine.step()
    assert not torch.equal(fakes[0], before[0])


def test_masks_of_stochastic_depth_differ_between_samples_and_steps():
    engine = dcgan({"generator": "resnet", "survival": 0.5}, resolution=64, micro_batch=4)
    masks, rand = [], torch.rand

    def watched(*args, **kwargs):
        masks.append(rand(*args, **kwargs) < 0.5)
        return masks[-1].float()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", watched)
        engine.step()
    assert len(masks) % 4 == 0 and len({tuple(mask.tolist()) for mask in masks}) > 2


def test_spectral_norm_moves_once_a_phase_and_not_by_micro_batches():
    options = {"spectral_norm_g": True, "spectral_norm_d": True, "norm_g": "none", "norm_d": "none"}
    engines = [dcgan(options, micro_batch=size) for size in (None, 4, 3)]

    def vectors(engine):
        return [b.clone() for name, b in engine.gan.named_buffers() if name.endswith(("._u", "._v"))]

    for engine in engines:
        phases = []
        for phase in engine.phases:
            before = vectors(engine)
            engine.gradients(phase)
            phases.append([p.grad.clone() for p in engine.sets[phase.trains] if p.grad is not None])
            assert before and not same(before, vectors(engine))
        engine.found = phases
    assert same(vectors(engines[0]), vectors(engines[1])) and same(vectors(engines[0]), vectors(engines[2]))
    for engine in engines[1:]:
        for whole, split in zip(engines[0].found, engine.found, strict=True):
            for a, b in zip(whole, split, strict=True):
                assert (a - b).norm() <= 1e-5 * a.norm() + 1e-9


@pytest.mark.parametrize("name, options", [("dcgan", {"discriminator_steps": 2}), ("dcgan", {"generator_batch_scale": 2.0}),
                                           ("wgan", {}), ("wgan_gp", {})])  # fmt: skip
def test_phases_that_cannot_share_draw_their_own(name, options):
    gan = tiny_gan.build(name, options)
    discriminator, generator = gan.phases()
    assert generator.same_batch_as is None and discriminator.keeps_graph == ()
    engine, latents = tiny_gan.engine(name, options), []
    engine.gan.generator.register_forward_pre_hook(lambda module, args: latents.append((torch.is_grad_enabled(), args[0])))
    tiny_gan.assert_trains(engine)
    assert [grad for grad, _ in latents] == [False] * (len(latents) - 1) + [True]
    assert len({tuple(z[0].tolist()) for _, z in latents}) == len(latents) > 1
    assert len(latents[-1][1]) == 4 * options.get("generator_batch_scale", 1)


@pytest.mark.parametrize("name", ["vanilla", "dcgan", "cgan", "acgan", "lsgan"])
def test_models_that_share(name):
    engine = tiny_gan.engine(name, {}, classes=3)
    forwards = []
    engine.gan.generator.register_forward_hook(lambda *_: forwards.append(1))
    engine.step()
    assert len(forwards) == 1
