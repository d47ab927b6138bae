"""A 2-d convolution whose derivatives of every order are single grouped convolutions.

Gradient penalties (R1, R2, WGAN-GP) differentiate a network twice. PyTorch's own double backward of a grouped convolution
loops over the groups, one small convolution each. Convolution, input-gradient and weight-gradient are bilinear and each
other's derivatives, so three functions that refer to one another are differentiable any number of times at one call each:

    y = x * w        gx = g (*) w   (input-gradient)        gw = g (x) x   (weight-gradient)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0, groups: int = 1
) -> Tensor:
    """``torch.nn.functional.conv2d`` with cheap higher derivatives.

    x (n, c_in, h, w), weight (c_out, c_in / groups, k, k), bias (c_out,) or None, all of one dtype (under autocast they are
    cast like the built-in's); returns (n, c_out, h', w') with h' = (h + 2 padding - k) // stride + 1. CPU, CUDA or MPS, any
    floating dtype, contiguous or channels_last.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if not torch.is_grad_enabled():
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)
    return _Convolution.apply(x, weight, bias, (stride, padding, groups))


def leaky_relu_(x: Tensor, slope: float = 0.2) -> Tensor:
    """LeakyReLU that overwrites ``x`` and keeps only its result, which the next convolution keeps anyway.

    ``slope`` must be positive (the sign of the result stands for the sign of the input). Twice and more differentiable.
    """
    if not torch.is_grad_enabled():
        return F.leaky_relu_(x, slope)
    return _LeakyReLU.apply(x, slope)


def _wanted(ctx, index: int) -> bool:
    """Whether the running backward pass needs the gradient of input ``index``.

    ``ctx.needs_input_grad`` is fixed in the forward pass, so that ``autograd.grad(logits, images)`` would compute all weight
    gradients only to drop them. The engine knows better, but cannot say so for a leaf that is itself asked for: then yes.
    """
    if not ctx.needs_input_grad[index]:
        return False
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[index][0])
    except (AttributeError, RuntimeError):
        return True


class _Convolution(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, geometry):
        stride, padding, groups = ctx.geometry = geometry
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = _InputGradient.apply(grad, weight, x.shape[2:], ctx.geometry) if _wanted(ctx, 0) else None
        grad_weight = _WeightGradient.apply(grad, x, weight.shape, ctx.geometry) if _wanted(ctx, 1) else None
        grad_bias = grad.sum((0, 2, 3)) if _wanted(ctx, 2) else None
        return grad_x, grad_weight, grad_bias, None


class _InputGradient(Function):
    @staticmethod
    def forward(ctx, grad, weight, size, geometry):
        stride, padding, groups = ctx.geometry = geometry
        ctx.save_for_backward(grad, weight)
        # rows and columns at the far edge that no output position reads
        extra = [n + 2 * padding - k - (m - 1) * stride for n, k, m in zip(size, weight.shape[2:], grad.shape[2:], strict=True)]
        dtype = grad.dtype
        if groups > 1 and weight.shape[1] == 1 and grad.device.type == "cpu" and dtype.itemsize < 4:
            grad, weight = grad.float(), weight.float()  # PyTorch's depthwise kernel for this is 70 times slower in bfloat16
        return F.conv_transpose2d(grad, weight, None, stride, padding, extra, groups).to(dtype)

    @staticmethod
    def backward(ctx, grad2):
        grad, weight = ctx.saved_tensors
        grad_grad = _Convolution.apply(grad2, weight, None, ctx.geometry) if _wanted(ctx, 0) else None
        grad_weight = _WeightGradient.apply(grad, grad2, weight.shape, ctx.geometry) if _wanted(ctx, 1) else None
        return grad_grad, grad_weight, None, None


class _WeightGradient(Function):
    @staticmethod
    def forward(ctx, grad, x, shape, geometry):
        stride, padding, groups = ctx.geometry = geometry
        ctx.save_for_backward(grad, x)
        weight = x.new_empty(1).expand(shape)  # only its shape is read
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, (False, True, False)
        )[1]

    @staticmethod
    def backward(ctx, grad2):
        grad, x = ctx.saved_tensors
        grad_grad = _Convolution.apply(x, grad2, None, ctx.geometry) if _wanted(ctx, 0) else None
        grad_x = _InputGradient.apply(grad, grad2, x.shape[2:], ctx.geometry) if _wanted(ctx, 1) else None
        return grad_grad, grad_x, None, None


class _LeakyReLU(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope = slope
        y = F.leaky_relu_(x, slope)
        ctx.mark_dirty(y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return _LeakyReLUGradient.apply(grad, ctx.saved_tensors[0], ctx.slope), None


class _LeakyReLUGradient(Function):
    @staticmethod
    def forward(ctx, grad, y, slope):
        ctx.slope = slope
        ctx.save_for_backward(y)
        return torch.ops.aten.leaky_relu_backward(grad, y, slope, True)

    @staticmethod
    def backward(ctx, grad2):  # linear in grad; almost everywhere constant in y
        return _LeakyReLUGradient.apply(grad2, ctx.saved_tensors[0], ctx.slope), None, None
