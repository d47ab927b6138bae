"""Layers that every convolutional network of the zoo can take: normalisation, attention, batch statistics, stochastic depth.

All are twice differentiable (gradient penalties), keep channels_last, and follow autocast; parameters stay in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from nets.blocks import ClassEmbedding, Convolution, Linear
from nets.convolution import conv2d

NORMS = ("batch", "instance", "layer", "group", "none")

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
EMBEDDINGS = (nn.Embedding, ClassEmbedding)
WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED, nn.Linear, Convolution, Linear, *EMBEDDINGS)  # one `weight` each


class Conv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` (same arguments, parameters and values) whose second derivatives are as cheap as its first.

    (n, c_in, h, w) -> (n, c_out, h', w'). Stride and padding that differ between the sides, dilation, padding modes other
    than zeros, and images without a batch dimension go to PyTorch's own function.
    """

    def forward(self, x: Tensor) -> Tensor:
        square = self.stride[0] == self.stride[1] and not isinstance(self.padding, str) and self.padding[0] == self.padding[1]
        if not square or self.dilation != (1, 1) or self.padding_mode != "zeros" or x.ndim != 4:
            return super().forward(x)
        return conv2d(x, self.weight, self.bias, stride=self.stride[0], padding=self.padding[0], groups=self.groups)


def norm(kind: str, channels: int) -> nn.Module:
    """A normalisation (n, channels, h, w) -> the same, with a scale (one at first) and a shift (zero) for each channel.

    batch     over n, h and w, running statistics in eval mode (arXiv:1502.03167); couples the samples of a batch.
    instance  over h and w (arXiv:1607.08022); h * w of at least 2.
    layer     over all channels, h and w (arXiv:1607.06450).
    group     over groups of neighbouring channels, h and w (arXiv:1803.08494): as many groups as divide the channels, but
              at most 32 and not more than one for every 4 channels.
    none      the identity.

    ValueError for another kind.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "instance":
        return nn.InstanceNorm2d(channels, affine=True)
    if kind == "layer":
        return nn.GroupNorm(1, channels)
    if kind == "group":
        return nn.GroupNorm(largest_divisor(channels, max(1, min(32, channels // 4))), channels)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"unknown norm {kind!r}, allowed: {', '.join(NORMS)}")


def needs_bias(kind: str) -> bool:
    """Whether a convolution before ``norm(kind, …)`` needs a bias: batch and instance norm subtract each channel's mean."""
    return kind not in ("batch", "instance")


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of ``n`` (at least 1) that is at most ``most`` (at least 1)."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)


class SelfAttention(nn.Module):
    """x + gain * v(attention over all positions of x), the block of SAGAN (arXiv:1805.08318).

    (n, channels, h, w) -> the same. Query, key and value are 1x1 convolutions to channels / 8 (at least one), ``output`` leads
    back to ``channels``; the learnt ``gain`` (1,) starts at 0, so that a fresh block is the identity. Memory and time grow with
    (h * w)^2. Written as two matrix products and a softmax: the fused attention kernels have no second derivative.
    """

    def __init__(self, channels: int):
        super().__init__()
        inner = max(1, channels // 8)
        self.query, self.key, self.value = (Conv2d(channels, inner, 1, bias=False) for _ in range(3))
        self.output = Conv2d(inner, channels, 1, bias=False)
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))  # (n, inner, h * w)
        scores = query.transpose(1, 2) @ key  # row: the position that asks, column: the one that is asked
        if scores.dtype.itemsize < 4:
            scores = scores.float()  # a sum over thousands of positions
        attention = scores.softmax(dim=2).to(value.dtype)
        y = self.output((value @ attention.transpose(1, 2)).unflatten(2, x.shape[2:]))
        return x + (self.gain * y).to(x.dtype)


class MinibatchStddev(nn.Module):
    """Appends one channel with the standard deviation within groups of samples (arXiv:1710.10196, as in arXiv:1912.04958).

    (n, c, h, w) -> (n, c + 1, h, w). The group size is the largest divisor of n that is at most ``group_size``; with m groups,
    samples i, i + m, i + 2 m, … form group i. The deviation (over the group, biased) of each feature is averaged over c, h and w
    and is the same at every position. ValueError for a group size below 1.
    """

    batch_coupled = True  # a sample's output depends on the others in its batch, in eval mode too

    def __init__(self, group_size: int = 4):
        super().__init__()
        if group_size < 1:
            raise ValueError(f"the group size of a minibatch standard deviation must be at least 1, found {group_size}")
        self.group_size = group_size

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        size = largest_divisor(n, self.group_size)
        y = x.float() if x.dtype.itemsize < 4 else x
        y = y.unflatten(0, (size, n // size))
        variance = (y - y.mean(0)).square().mean(0)
        deviation = (variance + 1e-8).sqrt().mean((1, 2, 3))  # the root has no derivative at zero, which groups of one have
        extra = deviation.repeat(size).to(x.dtype)[:, None, None, None].expand(n, 1, h, w)
        channels_last = x.is_contiguous(memory_format=torch.channels_last)  # cat keeps a format only if all have it
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return torch.cat([x, extra.contiguous(memory_format=layout)], dim=1)

    def extra_repr(self) -> str:
        return f"group_size={self.group_size}"


class StochasticDepth(nn.Module):
    """Drops whole samples of a residual branch in training (arXiv:1603.09382): (n, …) -> the same.

    Each sample survives with probability ``survival`` in (0, 1], divided by it to keep the mean, else becomes 0. The identity
    in eval mode. Draws from the default generator of the input's device. ValueError for another ``survival``.
    """

    def __init__(self, survival: float):
        super().__init__()
        if not 0 < survival <= 1:
            raise ValueError(f"a survival probability must lie in (0, 1], found {survival}")
        self.survival = survival

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.survival == 1:
            return x
        alive = torch.rand(len(x), device=x.device) < self.survival
        return x * (alive.to(x.dtype) / self.survival).view(-1, *[1] * (x.ndim - 1))

    def extra_repr(self) -> str:
        return f"survival={self.survival}"


def linear_survival(final: float, blocks: int) -> list[float]:
    """One survival probability a block, linearly from 1.0 for the first to ``final`` for the last (a single block: ``final``)."""
    if blocks == 1:
        return [final]
    return [1 - (1 - final) * i / (blocks - 1) if i < blocks - 1 else final for i in range(blocks)]


class SpectralNorm(nn.Module):
    """A parametrization: the weight divided by its largest singular value, in the parameter's dtype even under autocast.

    Reading the weight moves nothing, in training mode or not; :meth:`advance` does one step of the power iteration. So the
    singular vectors depend neither on how a batch was split nor on how often a network was run.
    """

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm.eval()  # PyTorch's would move its vectors at each reading in training mode

    def train(self, mode: bool = True) -> SpectralNorm:
        self.training = mode
        return self

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            return self.norm(weight)

    def right_inverse(self, value: Tensor) -> Tensor:
        return self.norm.right_inverse(value)

    @torch.no_grad()
    def advance(self, weight: Tensor) -> None:
        """One step of the power iteration for ``weight``."""
        if weight.ndim > 1:
            self.norm._power_method(self.norm._reshape_weight_to_matrix(weight), self.norm.n_power_iterations)


def advance_spectral_norm(module: nn.Module) -> None:
    """One step of the power iteration for every weight of ``module`` under spectral norm; once for each update of a network."""
    for layer in module.modules():
        if isinstance(layer, parametrize.ParametrizationList):
            for step in layer:
                if isinstance(step, SpectralNorm):
                    step.advance(layer.original)


def spectral_norm(module: nn.Module) -> nn.Module:
    """Divides the weight of every convolution, linear map and embedding in ``module`` by its largest singular value.

    In place; returns ``module``. arXiv:1802.05957 by PyTorch's parametrization, except that the power iteration moves only in
    :func:`advance_spectral_norm`; a convolution's matrix has one row for each output channel. Computed in the parameters'
    fp32 also under autocast. Weights that have it already are left alone. ``initialise`` comes before,
    building the optimizer after. ValueError, before anything is changed, if a weight is all zeros: it has no direction, and
    would become NaN.
    """
    found = {name: layer for name, layer in module.named_modules() if isinstance(layer, WEIGHTED)}
    found = {name: layer for name, layer in found.items() if not parametrize.is_parametrized(layer, "weight")}
    for name, layer in found.items():
        if not layer.weight.any():
            raise ValueError(f"spectral norm needs weights to divide, but those of {name or type(layer).__name__} are all zero")
    for layer in found.values():
        parametrizations.spectral_norm(layer)
        steps = layer.parametrizations.weight
        steps[-1] = SpectralNorm(steps[-1])
    return module
