"""The moving average: what is averaged, what is copied, and how fast."""

import pytest
import torch
import toy_run
import toys
from torch import nn

from training.ema import ema_beta, ema_copy, ema_update


def network():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    net.register_buffer("w_mean", torch.zeros(2))
    return net


@pytest.mark.parametrize(("batch", "half_life"), [(8, 64.0), (100, 100.0), (7, 500_000.0)])
def test_half_life_is_in_images(batch, half_life):
    steps = half_life / batch
    assert ema_beta(batch, half_life) ** steps == pytest.approx(0.5, rel=1e-12)
    assert ema_beta(batch, 0) == 0.0


def test_parameters_and_batchnorm_statistics_are_averaged_and_the_rest_is_copied():
    average, net = network(), network()
    for module, value in ((average, 1.0), (net, 3.0)):
        with torch.no_grad():
            for tensor in (*module.parameters(), module[1].running_mean, module[1].running_var, module.w_mean):
                tensor.fill_(value)
    average[1].num_batches_tracked.fill_(1)
    net[1].num_batches_tracked.fill_(9)
    ema_update(average, net, beta=0.75)
    for tensor in (*average.parameters(), average[1].running_mean, average[1].running_var):
        assert torch.equal(tensor, torch.full_like(tensor, 1.5))
    assert torch.equal(average.w_mean, torch.full((2,), 3.0)) and average[1].num_batches_tracked == 9
    ema_update(average, net, beta=0.0)
    assert all(torch.equal(a, b) for a, b in zip(average.state_dict().values(), net.state_dict().values()))


def test_the_copy_is_frozen_in_evaluation_mode_and_apart():
    net = network()
    average = ema_copy(net)
    assert not average.training and not any(p.requires_grad for p in average.parameters())
    with torch.no_grad():
        net[0].weight.add_(1)
    assert not torch.equal(average[0].weight, net[0].weight)
    assert net.training and all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("batch_size", [4, 8])
def test_after_one_half_life_of_images_the_old_weights_count_half(batch_size):
    """In the engine: weights that stand still at 1, an average that begins at 0; BatchNorm statistics and a counter too."""

    def prepare(gan):
        gan.generator[1].momentum = 0.0
        gan.generator.register_buffer("w_mean", torch.full((2,), 5.0))

    values = toys.values("reusing", optim={"name": "sgd", "lr": 0.0}, ema_half_life=0.032, batch_size=batch_size)
    engine = toy_run.build_engine(values, prepare)
    net, average = engine.gan.generator, engine.ema["generator"]
    with torch.no_grad():
        for module, value in ((net, 1.0), (average, 0.0)):
            for tensor in (*module.parameters(), module[1].running_mean, module[1].running_var):
                tensor.fill_(value)
        average.w_mean.zero_()
    for _ in range(32 // batch_size):
        engine.step()
    assert engine.clock.images_seen == 32
    for tensor in (*average.parameters(), average[1].running_mean, average[1].running_var):
        torch.testing.assert_close(tensor, torch.full_like(tensor, 0.5))
    assert torch.equal(average.w_mean, net.w_mean)
    assert average[1].num_batches_tracked == net[1].num_batches_tracked == 32 // batch_size


def test_a_scheduled_half_life_acts():
    values = toys.values("lazy", ema_half_life=0.0, schedule={"ema_half_life": {"kind": "steps", "at": [0.016], "values": [1.0]}})
    engine = toy_run.build_engine(values)
    for step in range(3):
        engine.step()
        equal = torch.equal(engine.ema["generator"][0].weight, engine.gan.generator[0].weight)
        assert equal == (step < 2)
