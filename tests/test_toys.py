"""Four kinds of training, each a class of its own, and what their phases see: no line in the driver is for any of them."""

import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toy_run
import toys

import training.engine
from gans.base import GAN, Clock, Phase
from training.draws import Draws


def record(engine):
    """What each phase of ``engine`` sees from now on: (step, phase, batch size, images)."""
    seen = []

    def watched(phase):
        def loss(batch):
            seen.append((engine.clock.step, phase.name, len(batch.images), batch.images.clone()))
            return phase.loss(batch)

        return replace(phase, loss=loss)

    engine.phases = [watched(phase) for phase in engine.phases]
    return seen


def copies(module):
    return [p.detach().clone() for p in module.parameters()]


def moved(module, before):
    return any(not torch.equal(p, q) for p, q in zip(module.parameters(), before))


@pytest.mark.parametrize("name", toys.TOYS)
def test_a_toy_is_one_short_class(name):
    cls = toys.TOYS[name]
    assert len([line for line in inspect.getsource(cls).splitlines() if line]) < 40


def test_the_driver_names_no_model():
    """engine.py, trainer.py and what they stand on know neither toys nor models, generators nor discriminators."""
    folder = Path(training.__file__).parent
    names = [*toys.TOYS, "r3gan", "discriminator", "critic"]
    for file in ("engine", "trainer", "batch", "checkpoint", "folder", "ema", "optimizers", "processes", "schedules"):
        code = (folder / f"{file}.py").read_text().lower()
        assert not [name for name in names if name in code and name != "lazy"], file


@pytest.mark.parametrize("name", ["clipped", "lazy", "growing", "reusing"])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_what_is_announced_is_what_is_asked_for(name, micro_batch):
    """The indices that workers read ahead, through lazy phases, repeats, shared batches and a change of the batch size."""
    gan = {"many": 3, "few": 1, "first_steps": 2, "every": 4} if name == "clipped" else {}
    engine = toy_run.build_engine(toys.values(name, gan=gan, micro_batch=micro_batch))
    asked, fetch = [], engine.source.batch
    engine.source.batch = lambda indices: (asked.append(indices), fetch(indices))[1]
    engine.step()
    del asked[:]
    coming = engine.coming()
    for _ in range(7):
        engine.step()
    assert len(asked) >= 14
    assert all(torch.equal(indices, next(coming)) for indices in asked)


# (a) many critic updates, clipped --------------------------------------------------------------------------------------------


def test_a_hundred_updates_then_five():
    gan = toys.Clipped(toys.ClippedOptions(), toys.toy_data(None).spec, None, None)
    repeats = {step: gan.repeats(Clock(step, 64 * step)) for step in (0, 1, 24, 25, 26, 499, 500, 501, 1000, 1001)}
    assert repeats == {0: 100, 1: 100, 24: 100, 25: 5, 26: 5, 499: 5, 500: 100, 501: 5, 1000: 100, 1001: 5}


def test_repeats_see_fresh_batches_and_clip_after_each():
    engine = toy_run.build_engine(toys.values("clipped", gan={"many": 4, "few": 2, "first_steps": 2, "every": 5}))
    seen, largest = record(engine), []
    (critic, generator) = engine.phases
    engine.phases = [replace(critic, after_update=lambda: (largest.append(_largest(engine)), critic.after_update(),
                                                            largest.append(_largest(engine)))), generator]  # fmt: skip
    for _ in range(7):
        engine.step()
    runs = [[name for step, name, _, _ in seen if step == k].count("critic") for k in range(7)]
    assert runs == [4, 4, 2, 2, 2, 4, 2]
    assert [name for _, name, _, _ in seen].count("generator") == 7
    assert all(n == 8 for _, _, n, _ in seen)
    for k in range(7):
        images = [x for step, _, _, x in seen if step == k]
        assert not any(torch.equal(a, b) for i, a in enumerate(images) for b in images[i + 1 :])
    updates = engine.optimizers["discriminator"].optimizer.state[engine.sets["discriminator"][0]]["step"]
    assert updates == sum(runs) and len(largest) == 2 * sum(runs)
    assert max(largest[0::2]) > 0.05 and max(largest[1::2]) == pytest.approx(0.05)


def _largest(engine):
    return max(float(p.abs().max()) for p in engine.sets["discriminator"])


# (b) a lazy regularizer on half the batch ------------------------------------------------------------------------------------


def test_two_phases_share_one_optimizer():
    engine = toy_run.build_engine(toys.values("lazy", batch_size=6))
    seen, lrs = record(engine), set()
    for _ in range(9):
        engine.step()
        lrs.add(engine.optimizers["discriminator"].optimizer.param_groups[0]["lr"])
    assert [(step, n) for step, name, n, _ in seen if name == "regularizer"] == [(0, 3), (4, 3), (8, 3)]
    assert [(step, n) for step, name, n, _ in seen if name == "discriminator"] == [(k, 6) for k in range(9)]
    assert set(engine.optimizers) == {"generator", "discriminator"}
    steps = {name: o.optimizer.state[engine.sets[name][0]]["step"] for name, o in engine.optimizers.items()}
    assert steps == {"generator": 9, "discriminator": 9 + 3}
    group = engine.optimizers["discriminator"].optimizer.param_groups[0]
    assert lrs == {2e-3 * 4 / 5} and group["betas"] == pytest.approx((0.5**0.8, 0.9**0.8), rel=1e-12)
    assert engine.optimizers["generator"].optimizer.param_groups[0]["lr"] == 2e-3
    assert engine.clock == Clock(9, 54)  # whatever the phases draw


def test_half_batches_run_through_the_epoch_too():
    """Half batches follow each other without a gap: the first 50 images of the regularizer's stream are all that there are."""
    engine = toy_run.build_engine(toys.values("lazy", gan={"interval": 1}))
    seen = record(engine)
    for _ in range(13):
        engine.step()
    images = torch.cat([x for _, name, _, x in seen if name == "regularizer"])
    assert len(images) == 52 and len(images[:50].flatten(1).unique(dim=0)) == 50


# (c) a pool ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_the_pool_moves_once_a_step_in_the_order_of_the_batch(micro_batch):
    """A plain re-enactment of the pool, image by image, sees what the discriminator saw and holds what the buffers hold."""
    engine = toy_run.build_engine(toys.values("pooled", batch_size=5, micro_batch=micro_batch))
    gan = engine.gan
    forward = gan.discriminator.forward
    pools: dict[str, list] = {"generator": [], "other": []}
    swaps = 0
    for _ in range(6):
        inputs: list[torch.Tensor] = []
        gan.discriminator.forward = lambda x, inputs=inputs: (inputs.append(x.detach().clone()), forward(x))[1]
        before = copies(gan.generator), copies(gan.other)
        draws = Draws(engine.config.seed, engine.clock.step, "generators", 0, 5)
        fakes = {}
        for side in pools:
            with torch.no_grad():
                fakes[side] = getattr(gan, side)(draws.draw(f"z_{side}", 4))
        engine.step()
        assert moved(gan.generator, before[0]) and moved(gan.other, before[1])
        parts = len(inputs) // 5  # for each micro-batch: two fakes; then, in the discriminator's phase, a real and two fakes
        looked = [inputs[2 * parts + 3 * i :][:3] for i in range(parts)]
        for at, side in enumerate(("generator", "other"), start=1):
            saw = torch.cat([micro[at] for micro in looked])
            slots, old = draws.draw(f"slot_{side}", (), "integer", high=6), draws.draw(f"old_{side}", (), "uniform") < 0.5
            pool, filled = pools[side], len(pools[side])
            expected = [pool[s] if o and s < filled else fake for fake, s, o in zip(fakes[side], slots.tolist(), old.tolist())]
            torch.testing.assert_close(saw, torch.stack(expected))
            for fake, s, o in zip(fakes[side], slots.tolist(), old.tolist()):
                if o and s < filled:
                    pool[s], swaps = fake, swaps + 1
                elif len(pool) < 6:
                    pool.append(fake)
    assert swaps > 5
    assert gan.filled.tolist() == [6, 6]
    torch.testing.assert_close(gan.pool, torch.stack([torch.stack(pools[side]) for side in ("generator", "other")]))


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_observed_means_are_those_of_the_global_batch_over_all_repeats(micro_batch):
    looked, observed = [], []

    def prepare(gan):
        loss = gan.discriminator_loss

        def reporting(batch):
            looked.append(batch.images.mean(dim=(1, 2, 3)))
            batch.report("brightness", looked[-1])
            return loss(batch)

        gan.discriminator_loss, gan.observes, gan.observe = reporting, ("critic/brightness",), observed.append

    gan = {"many": 2, "few": 2}
    engine = toy_run.build_engine(toys.values("clipped", gan=gan, batch_size=7, micro_batch=micro_batch), prepare)
    for step in range(3):
        del looked[:]
        engine.step()
        assert len(observed) == step + 1 and set(observed[-1]) == {"critic/brightness"}
        torch.testing.assert_close(observed[-1]["critic/brightness"], torch.cat(looked).mean())


# (d) growing -----------------------------------------------------------------------------------------------------------------


def test_resolution_batch_size_and_learning_rate_change_and_optimizers_start_anew():
    engine = toy_run.build_engine(toys.values("growing", gan={"at_kimg": 0.024}))
    seen = record(engine)
    states = []
    for _ in range(6):
        engine.step()
        optimizer = engine.optimizers["generator"].optimizer
        state = optimizer.state.get(engine.gan.generator["low"][0].weight)
        states.append((engine.clock.images_seen, None if state is None else int(state["step"]), optimizer.param_groups[0]["lr"]))
    assert states == [(8, 1, 1e-2), (16, 2, 1e-2), (24, None, 1e-3), (28, 1, 1e-3), (32, 2, 1e-3), (36, 3, 1e-3)]
    assert [n for _, name, n, _ in seen if name == "generator"] == [8, 8, 8, 4, 4, 4]
    assert engine.values["resolution"] == 8 and engine.gan.values == engine.values
    torch.testing.assert_close(engine.gan.sample(torch.ones(2, 4)).shape, torch.Size([2, 1, 8, 8]))


def test_a_schedule_of_the_users_wins():
    options = {"lr": {"kind": "steps", "at": [0.008], "values": [0.5]}}
    engine = toy_run.build_engine(toys.values("growing", schedule=options))
    engine.step()
    assert engine.optimizers["generator"].optimizer.param_groups[0]["lr"] == 0.5


# (e) one generator forward for two phases ------------------------------------------------------------------------------------


def test_the_fake_is_made_once_and_lent_with_its_graph():
    engine = toy_run.build_engine(toys.values("reusing"))
    calls = []
    engine.gan.generator.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    tracked = engine.gan.generator[1].num_batches_tracked
    engine.step()
    assert len(calls) == 1 and tracked == 1
    assert engine.gan.discriminator[2].num_batches_tracked == 3  # real and fake, then the fake for the generator


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("name", ["reusing", "pooled"])
def test_phases_with_the_same_batch_see_the_same_images(name, micro_batch):
    engine = toy_run.build_engine(toys.values(name, micro_batch=micro_batch))
    seen = record(engine)
    for _ in range(2):
        engine.step()
    first, second = ([x for _, phase, _, x in seen if phase == p.name] for p in engine.phases)
    assert len(first) == len(second) == (2 if micro_batch is None else 6)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_micro_batches_make_it_again_without_moving_statistics():
    engine = toy_run.build_engine(toys.values("reusing", micro_batch=3))
    calls = []
    engine.gan.generator.register_forward_hook(lambda *_: calls.append(1))
    statistics = []
    discriminator, generator = engine.phases
    engine.phases[1] = replace(generator, loss=lambda batch: (statistics.append(_statistics(engine)), generator.loss(batch))[1])
    engine.step()
    assert len(calls) == 6 and engine.gan.generator[1].num_batches_tracked == 3
    statistics.append(_statistics(engine))
    assert all(torch.equal(a, statistics[0]) for a in statistics[1:])


def _statistics(engine):
    norm = engine.gan.generator[1]
    return torch.cat([norm.running_mean, norm.running_var]).clone()


def test_lent_and_recomputed_fakes_give_the_same_gradients(monkeypatch):
    lent = toy_run.all_gradients(toy_run.build_engine(toys.values("reusing")))
    monkeypatch.setattr(GAN, "reuse", lambda self, batch, name, forward: forward())
    recomputed = toy_run.all_gradients(toy_run.build_engine(toys.values("reusing")))
    assert len(lent) > 8 and lent.keys() == recomputed.keys()
    assert all(torch.equal(lent[name], recomputed[name]) for name in lent)


# what the interface refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (lambda gan: [Phase("a", "generator", gan.generator_loss), Phase("a", "generator", gan.generator_loss)], "share a name"),
        (lambda gan: [Phase("a", "generators", gan.generator_loss)], "names the parameter set 'generators'"),
        (lambda gan: [Phase("a", "generator", gan.generator_loss, same_batch_as="b")], "must name an earlier phase"),
        (lambda gan: [Phase("a", "generator", gan.generator_loss, interval=2),
                      Phase("b", "generator", gan.generator_loss, same_batch_as="a")], "in steps in which 'a' does not"),
        (lambda gan: [Phase("a", "generator", gan.generator_loss, batch_scale=2.0),
                      Phase("b", "generator", gan.generator_loss, same_batch_as="a")], "same batch_scale"),
    ],
)  # fmt: skip
def test_phases_that_cannot_work_are_refused_before_the_first_step(phases, message):
    def prepare(gan):
        gan.phases = lambda: phases(gan)

    with pytest.raises(ValueError, match=message):
        toy_run.build_engine(toys.values("lazy"), prepare)


def test_a_loss_of_the_wrong_shape_is_refused():
    def prepare(gan):
        gan.generator_loss = lambda batch: {"bad": gan.discriminator(gan.generator(batch.draw("z", 4)))[:, None]}

    engine = toy_run.build_engine(toys.values("lazy"), prepare)
    with pytest.raises(ValueError, match=r"phase 'generator': loss term 'bad' must be a scalar or \(8,\), got \(8, 1\)"):
        engine.step()
