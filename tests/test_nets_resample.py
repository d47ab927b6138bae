"""FIR resampling against golden numbers from an independent public implementation."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nets.resample import Downsample, Upsample, lowpass_kernel

GOLDEN = load_file(Path(__file__).parent / "golden" / "r3gan_resamplers.safetensors")
FILTERS = {"121": (1, 2, 1), "14641": (1, 4, 6, 4, 1)}


@pytest.mark.parametrize("name", FILTERS)
def test_golden(name):
    taps = FILTERS[name]
    torch.testing.assert_close(lowpass_kernel(taps), GOLDEN[f"out.kernel_{name}"], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(Downsample(taps)(GOLDEN["in.x"]), GOLDEN[f"out.down_{name}"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(Upsample(taps)(GOLDEN["in.x"]), GOLDEN[f"out.up_{name}"], rtol=1e-5, atol=1e-5)


def test_they_are_each_others_transpose_and_twice_differentiable():
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 8, 4, dtype=torch.float64), torch.randn(2, 3, 4, 2, dtype=torch.float64)
    torch.testing.assert_close((Downsample()(x) * y).sum(), (x * Upsample()(y)).sum() / 4)
    for layer, t in ((Downsample(), x), (Upsample(), y)):
        assert torch.autograd.gradgradcheck(layer, (t.clone().requires_grad_(),))


def test_formats_and_dtypes():
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    for layer, size in ((Downsample(), 4), (Upsample(), 16)):
        assert not layer.state_dict()  # the filter is a constant
        y = layer(x)
        assert y.shape == (2, 4, size, size) and y.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(layer(x.contiguous()), y)
        assert layer(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="odd number of taps"):
        lowpass_kernel((1, 1))
