"""The first GAN's networks, on images and on points."""

import pytest
import torch
from torch import nn

from nets.mlp import MLPDiscriminator, MLPGenerator


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_layers():
    g, d = MLPGenerator(6, 16, 8, 3, depth=2), MLPDiscriminator(12, 8, 3, depth=4)
    assert [m.out_features for m in g.modules() if isinstance(m, nn.Linear)] == [16, 16, 192]
    assert [m.out_features for m in d.modules() if isinstance(m, nn.Linear)] == [12, 12, 12, 12, 1]
    assert sum(isinstance(m, nn.ReLU) for m in g.modules()) == 2
    assert [m.negative_slope for m in d.modules() if isinstance(m, nn.LeakyReLU)] == [0.2] * 4
    images = g(torch.randn(5, 6))
    assert images.shape == (5, 3, 8, 8) and d.features(images).shape == (5, 12) and d(images).shape == (5,)
    for build in (lambda: MLPGenerator(6, 16, 8, 3, depth=0), lambda: MLPDiscriminator(16, 8, 3, depth=0)):
        with pytest.raises(ValueError, match="at least one hidden layer, found depth=0"):
            build()


def test_points_have_a_linear_end():
    g, d = MLPGenerator(2, 64, 1, 2, bounded=False), MLPDiscriminator(64, 1, 2)
    z = torch.randn(1000, 2)
    points = g(10 * z)
    assert points.shape == (1000, 2, 1, 1) and points.abs().max() > 1 and d(points).shape == (1000,)
    assert MLPGenerator(2, 64, 1, 2)(10 * z).abs().max() <= 1


def test_activations_keep_their_size():
    g, d = MLPGenerator(64, 512, 28, 1, depth=6, bounded=False), MLPDiscriminator(512, 28, 1, depth=6)
    assert all(not m.bias.any() for net in (g, d) for m in net.modules() if isinstance(m, nn.Linear))
    images = g(torch.randn(256, 64))
    assert 0.5 < images.std() < 2
    logits = d(torch.randn(256, 1, 28, 28))
    assert 0.2 < logits.square().mean().sqrt() < 3


def test_the_class_is_joined_to_latents_and_pixels():
    g = MLPGenerator(6, 16, 8, 1, classes=4, embedding_dim=5)
    d = MLPDiscriminator(16, 8, 1, classes=4, conditioning="concat", embedding_dim=5)
    assert g.layers[0].in_features == 6 + 5 and d.layers[0].in_features == 64 + 5
    z, labels, images = torch.randn(3, 6), torch.tensor([0, 3, 3]), torch.randn(3, 1, 8, 8)
    assert torch.equal(g(z, labels), g.output(g.layers(torch.cat([z, g.embedding.weight[labels]], 1))))
    assert torch.equal(d.features(images, labels), d.layers(torch.cat([images.flatten(1), d.embedding.weight[labels]], 1)))


def test_dropout_acts_in_training_only():
    d, images = MLPDiscriminator(16, 8, 1, dropout=0.5), torch.randn(3, 1, 8, 8)
    assert not torch.equal(d(images), d(images)) and torch.equal(d.eval()(images), d(images))
