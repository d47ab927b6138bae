"""The benchmark scripts run and measure what they say, at a size that takes seconds."""

import pytest
import torch.nn.functional as F

import nets.blocks
from benchmarks import gpu, step


def test_step_table_lists_every_way_with_the_first_as_one():
    options = step.Options(width=8, cardinality=2, resolution=8, batch_size=2, rounds=1, device="cpu")
    lines = step.table(step.measure(options, step.WAYS)).splitlines()
    assert [line.split("  (")[0].rsplit(None, 1)[0].strip() for line in lines] == [way.name for way in step.WAYS]
    assert lines[0].split("(")[0].split()[-1] == "1.00"


def test_convolution_switches_the_networks_to_torch_and_back():
    ours = nets.blocks.conv2d
    with step.convolution(own=False):
        assert nets.blocks.conv2d is not ours and nets.blocks.conv2d is not F.conv2d
    assert nets.blocks.conv2d is ours


@pytest.mark.parametrize("model", step.NARROW)
def test_gradients_of_the_gpu_script_agree_between_precisions(model):
    right = gpu.gradients("cpu", "fp32", model)
    assert set(right) == {"discriminator", "generator"}
    for phase, gradient in gpu.gradients("cpu", "bf16", model).items():
        error = float((gradient - right[phase]).norm() / right[phase].norm())
        assert 0 < error <= gpu.TOLERANCES["bf16"]


def test_gpu_script_says_that_it_needs_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert step.cli.simple_main(gpu.job, "", []) == 2
    assert "needs a CUDA device" in capsys.readouterr().err
