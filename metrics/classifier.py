"""A small classifier, trained once on a labelled data set: features and class scores for data that has no better judge.

What it learns is kept under a key of the data's hash and :data:`VERSION`, so a second evaluation does not train again and
other data never meets the wrong network. Numbers it gives compare models on the very same data only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data import to_float
from metrics import cache
from metrics.random_state import apart

VERSION = 1  # of everything below that changes the weights
RESOLUTION = 32
WIDTH = 32
IMAGES_SEEN = 150_000  # at most: two to three minutes on one CPU core
EPOCHS = 60  # at most: what a small data set is worth
BATCH = 100
LR, WEIGHT_DECAY, SMOOTHING = 4e-3, 0.05, 0.05
SHIFT = 3  # pixels that a training image may move
THREADS = 1  # fixed: sums in another order would give another network
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 5000
RESIZER = f"bilinear, antialiased, to {RESOLUTION} px"


@dataclass
class Classifier:
    """A trained network in evaluation mode.

    network            images (n, channels, 32, 32) in [-1, 1] -> logits (n, classes).
    held_out_accuracy  share of ``held_out`` images of the data, never trained on, that it recognises.
    weights_hash       of its state dict.
    """

    network: nn.Sequential
    held_out_accuracy: float
    held_out: int
    weights_hash: str

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 (n, channels, H, W) -> (features (n, 4 * WIDTH) before the last layer, logits (n, classes)), float32."""
        features = self.network[:-1](prepare(images))
        return features, self.network[-1](features)


def prepare(images: Tensor) -> Tensor:
    """uint8 images of any size -> float32 in [-1, 1] at 32 pixels."""
    images = to_float(images)
    if images.shape[2:] != (RESOLUTION, RESOLUTION):
        images = F.interpolate(images, (RESOLUTION, RESOLUTION), mode="bilinear", antialias=True, align_corners=False)
    return images


def classifier_for(
    images: Tensor, labels: Tensor, classes: int, data_hash: str, folder: Path | None, say: Callable[[str], None] = print
) -> Classifier:
    """The classifier of the data set ``images`` (N, channels, H, W) uint8, ``labels`` (N,) in 0 .. classes - 1.

    Read from ``folder`` or trained on the CPU and kept there. The caller's RNG state, threads and gradient mode stay as they
    were; on one machine the result is always the same.
    """
    key = {"version": VERSION, "data": data_hash}
    kept = cache.read(folder, "classifier", key)
    if kept is None:
        say(f"training a classifier on {len(images):,} labelled images, once (a few minutes at most) …")
        began = time.perf_counter()
        with apart(threads=THREADS), torch.inference_mode(False), torch.enable_grad():
            kept = _train(images.cpu(), labels.cpu(), classes)
        took = time.perf_counter() - began
        say(f"… {took:.0f} s, it recognises {kept['accuracy']:.1%} of {kept['held_out']:,} held-out images")
        cache.write(folder, "classifier", key, kept, say)
    with apart(), torch.inference_mode(False):  # layers draw first weights that the kept ones then replace
        network = _network(images.shape[1], classes)
    network.load_state_dict(kept["state"])
    network.eval().requires_grad_(False)
    return Classifier(network, kept["accuracy"], kept["held_out"], cache.weights_hash(kept["state"]))


def _network(channels: int, classes: int) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    w = WIDTH
    layers = [*block(channels, w), nn.MaxPool2d(2), *block(w, 2 * w), nn.MaxPool2d(2), *block(2 * w, 4 * w), *block(4 * w, 4 * w)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * w, classes))


def _train(images: Tensor, labels: Tensor, classes: int) -> dict:
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)
    n_held_out = max(1, min(MAX_HELD_OUT, round(HELD_OUT_SHARE * len(images))))
    held_out, train = order[:n_held_out], order[n_held_out:]
    if not len(train):
        train = held_out  # a data set of one image
    images = torch.cat([((prepare(part) + 1) * 127.5).round().to(torch.uint8) for part in images.split(1000)])
    torch.manual_seed(0)
    network = _network(images.shape[1], classes).to(memory_format=torch.channels_last)
    batch = min(BATCH, len(train))
    steps = max(20, min(IMAGES_SEEN, EPOCHS * len(train)) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps)
    queue = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        while len(queue) < batch:
            queue = torch.cat([queue, train[torch.randperm(len(train), generator=generator)]])
        pick, queue = queue[:batch], queue[batch:]
        logits = network(_shift(to_float(images[pick]), generator).contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits, labels[pick], label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        guesses = torch.cat([network(to_float(images[part])).argmax(dim=1) for part in held_out.split(500)])
    state = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
    accuracy = (guesses == labels[held_out]).double().mean().item()
    return {"state": state, "accuracy": accuracy, "held_out": n_held_out}


def _shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to SHIFT pixels in each direction, its border repeated: a stronger net from the same images."""
    n, size = len(images), images.shape[-1]
    top, left = torch.randint(2 * SHIFT + 1, (2, n, 1, 1), generator=generator)
    rows, columns = top + torch.arange(size).view(1, -1, 1), left + torch.arange(size).view(1, 1, -1)
    padded = F.pad(images, (SHIFT,) * 4, mode="replicate").permute(0, 2, 3, 1)
    return padded[torch.arange(n).view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2)
