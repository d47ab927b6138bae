"""Several processes compute what one would: gradients, state, logged means; two gloo processes stand for many."""

import pytest
import torch
import toy_run
import toys
from test_engine import distance, relative

from errors import UserError
from training.processes import Processes, pick_device


def reports(name, tmp_path, processes, steps=2, **changes):
    """What ``toy_run.report`` found in each process of the group."""
    paths = [tmp_path / f"{name}-{processes}-{rank}" for rank in range(processes)]
    job = {"values": toys.values(name, **changes), "path": str(tmp_path / f"{name}-{processes}"), "steps": steps}
    group = toy_run.start("report", job, tmp_path / "out", processes)
    assert toy_run.wait(group) == [0] * processes, (tmp_path / "out").read_text()
    return [torch.load(path, weights_only=True) for path in paths]


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [("pooled", 7), ("r3gan", 8), pytest.param("r3gan", 7, marks=slow), pytest.param("lazy", 6, marks=slow)],
)
def test_two_processes_equal_one_on_the_joined_batch(name, batch_size, tmp_path):
    """Gradients to 1e-6 of the whole and 1e-5 of each tensor, penalties and uneven shares (3 + 4 of 7) included."""
    (one,) = reports(name, tmp_path, 1, batch_size=batch_size)
    two = reports(name, tmp_path, 2, batch_size=batch_size)
    for mine in two:
        assert distance(mine["gradients"], one["gradients"]) < 1e-6
        assert relative(mine["gradients"], one["gradients"]) < 1e-5
        assert mine["means"] == {k: pytest.approx(v, rel=1e-4, abs=1e-5) for k, v in one["means"].items()}
    assert any(not torch.equal(two[0]["gradients"][k], one["gradients"][k]) for k in one["gradients"])  # or it was not split
    for key, tensor in two[0]["gan"].items():  # bit for bit: nothing but the sums has travelled, and they are alike
        assert torch.equal(tensor, two[1]["gan"][key])
    if name == "pooled":  # joined in the order of the batch
        assert one["gan"]["filled"].tolist() == two[0]["gan"]["filled"].tolist() == [6, 6]
        torch.testing.assert_close(two[0]["gan"]["pool"], one["gan"]["pool"], rtol=1e-3, atol=1e-4)


def test_batchnorm_statistics_are_averaged(tmp_path):
    """Each process sees half of the batch; at the end of the step both hold the mean of the two running statistics."""
    two = reports("reusing", tmp_path, 2, steps=1)
    engine = toy_run.build_engine(toys.values("reusing", micro_batch=4))
    norm, seen = engine.gan.generator[1], []
    engine.gan.generator[0].register_forward_hook(lambda module, x, y: seen.append(y.detach().clone()))
    engine.step()
    halves = seen[:2]
    mean = torch.stack([0.1 * half.mean(0) for half in halves]).mean(0)
    var = torch.stack([0.9 + 0.1 * half.var(0) for half in halves]).mean(0)
    for mine in two:
        torch.testing.assert_close(mine["gan"]["generator.1.running_mean"], mean)
        torch.testing.assert_close(mine["gan"]["generator.1.running_var"], var)
        assert mine["gan"]["generator.1.num_batches_tracked"] == 1
    assert norm.num_batches_tracked == 2


def test_a_batch_too_small_for_the_processes_ends_all_of_them(tmp_path):
    values = toys.values("lazy", batch_size=1, run_dir=str(tmp_path / "run"))
    group = toy_run.start("train", {"values": values}, tmp_path / "out", 2)
    assert toy_run.wait(group, 60) == [2, 2]
    assert "error: batch_size=1: too small to give each of 2 processes a sample" in (tmp_path / "out").read_text()


def test_shares_cover_the_batch_in_order():
    for count in (1, 2, 3, 5):
        for n in (count, 7, 8, 64):
            shares = []
            for rank in range(count):
                processes = Processes("cpu")
                processes.count, processes.rank = count, rank
                shares.append(processes.share(n))
            assert shares[0][0] == 0 and shares[-1][1] == n
            assert all(a[1] == b[0] for a, b in zip(shares, shares[1:]))
            assert max(b - a for a, b in shares) - min(b - a for a, b in shares) <= 1


def test_one_process_needs_no_group():
    processes = Processes("cpu")
    tensor = torch.ones(3)
    processes.sum_([tensor], scale=5.0)
    assert torch.equal(tensor, torch.ones(3)) and processes.first and processes.broadcast("x") == "x"
    assert processes.gather(tensor, 3) is tensor
    processes.wait()
    processes.close()


@pytest.mark.parametrize(
    ("name", "message"), [("gpu", "unknown device"), ("cuda:99", "usable CUDA devices"), ("xpu", "not supported")]
)
def test_devices_that_are_not_there(name, message):
    with pytest.raises(UserError, match=f"device={name}: .*{message}"):
        pick_device(name)
