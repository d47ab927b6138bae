"""The driver's side of augmentation: which strength reaches the pipe, and that partitions and resumes do not change it."""

import copy

import pytest
import torch

import gans
from data import DataSource, Spec
from data.augment import build_adaptive_strength
from errors import UserError
from training import cli
from training.config import build_config
from training.engine import Engine
from training.processes import Processes

TINY = ["gan.width=8", "gan.cardinality=2", "gan.blocks=1", "batch_size=8", "log.every_kimg=1", "recipe=null"]


def engine(*options: str) -> Engine:
    """An engine of a tiny R3GAN on 8 px colour noise."""
    arguments = cli.parse([*TINY, *options])
    config, _ = build_config(cli.compose(arguments), arguments.explicit, arguments.chosen)
    config.schedule_kimg = 0.1
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(256, (32, 3, 8, 8), generator=rng, dtype=torch.uint8)
    source = DataSource(images, torch.full((32,), -1), Spec("noise", 8, 3, 0))
    torch.manual_seed(2)
    gan = gans.build(config.gan, source.spec, config.loss, config.penalty)
    return Engine(gan, source, config, Processes("cpu"))


def gradients(made: Engine) -> dict[str, torch.Tensor]:
    found = {}
    for phase in made.phases:
        made.gradients(phase)
        found[phase.name] = torch.cat([p.grad.reshape(-1) for p in made.sets[phase.trains] if p.grad is not None])
    return found


def test_discriminator_sees_augmented_images_and_micro_batches_do_not_change_them():
    plain, whole = gradients(engine()), gradients(engine("augment=bgc", "augment_strength=0.8"))
    split = gradients(engine("augment=bgc", "augment_strength=0.8", "micro_batch=3"))
    for name, gradient in whole.items():
        assert not torch.allclose(gradient, plain[name], rtol=1e-2)
        torch.testing.assert_close(split[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def test_scheduled_strength_reaches_the_pipe_and_changes_with_the_clock():
    made = engine("augment=bgc", "schedule.augment_strength.final=1", "schedule.augment_strength.kind=linear")
    seen = []
    pipe = made.augment
    made.augment = lambda images, draw, strength: (seen.append(strength), pipe(images, draw, strength))[1]
    made.step()
    made.step()
    # 8 of 100 images of the schedule; the D phase augments reals and fakes, the G phase fakes and reals
    assert seen == [0.0] * 4 + [pytest.approx(0.08)] * 4


@pytest.mark.parametrize("loss, report", [("relativistic", "real_above_fake"), ("nonsaturating", "sign_real")])
def test_adaptive_strength_follows_what_the_loss_calls_recognising_reals(loss, report):
    options = ("augment=ada", "augment.adjust_kimg=0.05", "augment.interval=2", "augment.target=-0.9", f"loss={loss}")
    made = engine(*options)
    expected = build_adaptive_strength(made.config.augment)
    for _ in range(6):
        made.step()
        share = made.pop_means()[f"discriminator/{report}"]
        expected.update(2 * share - 1, 8)
    assert float(made.adaptive_strength.strength) == float(expected.strength) > 0
    assert made.values["augment_strength"] == float(expected.strength)

    resumed = engine(*options)
    resumed.load_state(copy.deepcopy(made.state()))
    made.step()
    resumed.step()
    for a, b in zip(made.gan.state_dict().values(), resumed.gan.state_dict().values()):
        assert torch.equal(a, b)
    assert torch.equal(made.adaptive_strength.strength, resumed.adaptive_strength.strength)


@pytest.mark.parametrize(
    "options, message",
    [
        (["augment=bgc"], "at augment_strength=0 it does nothing"),
        (["augment_strength=0.3"], "augment=none has no strength"),
        (["augment=diffaugment", "augment_strength=0.3"], "augment=diffaugment has no strength"),
        (["augment=ada", "schedule.augment_strength.final=1"], "schedule.augment_strength: nothing here has that name"),
        (["augment=bgc", "augment.cutuot=1"], "augment.cutuot: unknown option, did you mean 'cutout'?"),
    ],
)
def test_combinations_that_would_do_nothing_are_refused(options, message):
    with pytest.raises(UserError) as caught:
        engine(*options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_gan_without_the_report_cannot_have_an_adaptive_strength(monkeypatch):
    build = gans.build

    def silent(*arguments):
        gan = build(*arguments)
        gan.recognises_reals = None
        return gan

    monkeypatch.setattr(gans, "build", silent)
    with pytest.raises(UserError, match="does not report how often D recognises reals"):
        engine("augment=ada")
