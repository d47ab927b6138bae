"""The classification loss of an auxiliary classifier (arXiv:1610.09585)."""

from __future__ import annotations

import torch
from torch import Tensor


def auxiliary_cross_entropy(class_logits: Tensor, labels: Tensor | None) -> Tensor:
    """-log P(labels_i | image_i), (n, classes) logits and (n,) integer labels in [0, classes) -> (n,) in at least fp32.

    ValueError for other shapes, labels that are missing, not integers, or out of range. Values are checked on the CPU and,
    elsewhere, only for logits without a graph: reading them back would stall a GPU in every training step.
    """
    if class_logits.ndim != 2:
        raise ValueError(f"class logits must be (n, classes), found {tuple(class_logits.shape)}")
    n, classes = class_logits.shape
    if labels is None:
        raise ValueError(f"the auxiliary cross-entropy needs labels (n,) int64 in 0..{classes - 1}, found none")
    if labels.shape != (n,) or labels.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"labels must be ({n},) int64, found {tuple(labels.shape)} {labels.dtype}")
    if n and (labels.device.type == "cpu" or not class_logits.requires_grad):
        low, high = labels.min().item(), labels.max().item()
        if low < 0 or high >= classes:
            raise ValueError(f"label {low if low < 0 else high} is outside 0..{classes - 1}")
    dtype = torch.promote_types(class_logits.dtype, torch.float32)
    # not torch's cross_entropy, which takes the label -100 for "no loss here" without a word
    return -class_logits.log_softmax(1, dtype=dtype).gather(1, labels.long()[:, None]).squeeze(1)
