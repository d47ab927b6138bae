"""A tiny feature extractor for torch-fidelity, with BatchNorm and dropout inside, registered as ``tiny``."""

from __future__ import annotations

import torch
from torch import nn
from torch_fidelity import FeatureExtractorBase, register_feature_extractor
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY


class Tiny(FeatureExtractorBase):
    """uint8 RGB -> 12 features and 5 class scores; the same weights whenever it is made."""

    made: list[Tiny] = []

    def __init__(self, name, features_list, **kwargs):
        super().__init__(name, features_list)
        rng = torch.Generator().manual_seed(5)
        self.body = nn.Sequential(nn.Conv2d(3, 12, 3, 2), nn.BatchNorm2d(12), nn.Dropout(0.5), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(12, 5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=rng))
            self.body[1].running_mean.copy_(torch.randn(12, generator=rng))
            self.body[1].running_var.copy_(torch.rand(12, generator=rng) + 0.5)
        Tiny.made.append(self)

    def forward(self, images):
        assert images.dtype == torch.uint8 and images.shape[1] == 3
        features = self.body(images.float() / 127.5 - 1).flatten(1)
        found = {"body": features, "head": self.head(features)}
        return tuple(found[name] for name in self.features_list)

    @staticmethod
    def get_provided_features_list():
        return "body", "head"

    @staticmethod
    def get_default_feature_layer_for_metric(metric):
        return "head" if metric == "isc" else "body"

    @staticmethod
    def can_be_compiled():
        return False


if "tiny" not in FEATURE_EXTRACTORS_REGISTRY:
    register_feature_extractor("tiny", Tiny)
