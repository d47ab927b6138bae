"""A classifier of handwritten digits that judges samples of models trained on ``dataset=digits``.

It is trained on the spot in a few seconds, on the CPU, from scikit-learn's digits: nothing to download, and the share of
samples recognised as the digit that was asked for is a first, cheap score of a class-conditional model.
"""

from __future__ import annotations

import hashlib
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data import DatasetOptions, build, to_float

RESOLUTION = 16
TRAIN_SHARE = 0.8
SEED = 0
STEPS, BATCH, LR = 400, 64, 3e-3
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what "gray" means in image libraries


class DigitsClassifier:
    """A small convolutional network, trained when it is made (a few seconds on one CPU thread).

    Training uses a fixed 80 % of the 1,797 digits and draws its own random numbers: the caller's RNG state, thread count and
    gradient mode stay as they were, and two classifiers on one machine are identical. It always computes on the CPU in fp32.

    held_out_accuracy  share of the other 20 % (359 digits) that it recognises.
    held_out           indices (359,) int64 of these digits in the dataset's order.
    weights_hash       BLAKE2b (hex) of its weights, to be written beside scores.
    """

    @torch.inference_mode(False)  # tensors made in a caller's inference mode could not be trained on
    def __init__(self) -> None:
        digits = build(DatasetOptions(name="digits", resolution=RESOLUTION))
        images, labels = to_float(digits.images), digits.labels
        generator = torch.Generator().manual_seed(SEED)
        order = torch.randperm(len(digits), generator=generator)
        train, self.held_out = order.split([round(TRAIN_SHARE * len(order)), len(order) - round(TRAIN_SHARE * len(order))])
        self.network = _train(images[train], labels[train], generator)
        self.held_out_accuracy = recognised(self, images[self.held_out], labels[self.held_out])
        digest = hashlib.blake2b(digest_size=32)
        for weight in self.network.state_dict().values():
            digest.update(weight.numpy().tobytes())
        self.weights_hash = digest.hexdigest()

    @staticmethod
    def prepare(images: Tensor) -> Tensor:
        """Images (n, 1 or 3, H, W) in [-1, 1] as the network sees them: (n, 1, 16, 16) float32 on the CPU, in [-1, 1].

        Colour becomes luma, any other size is resized with an antialiased bicubic filter, values outside are clamped.
        """
        if images.dim() != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
            raise ValueError(f"wanted: float (n, 1 or 3, H, W) in [-1, 1]; got {images.dtype} {tuple(images.shape)}")
        images = images.detach().to("cpu", torch.float32)
        if images.shape[1] == 3:
            images = (images * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
        if images.shape[2:] != (RESOLUTION, RESOLUTION):
            images = F.interpolate(images, (RESOLUTION, RESOLUTION), mode="bicubic", antialias=True, align_corners=False)
        return images.clamp(-1, 1)

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Penultimate activations (n, 64) float32 of images in [-1, 1], on the images' device."""
        parts = [self.network[:-1](self.prepare(part)) for part in images.split(1000)]
        return torch.cat(parts).to(images.device)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Recognised digits (n,) int64 of images in [-1, 1], on the images' device; -1 where an image is not finite."""
        logits = self.network[-1](self.features(images).cpu())
        return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1).to(images.device)


@cache
def digits_classifier() -> DigitsClassifier:
    """The classifier of this process, trained at the first call."""
    return DigitsClassifier()


def recognised(classifier: DigitsClassifier, images: Tensor, labels: Tensor) -> float:
    """Share in [0, 1] of images (n, C, H, W) in [-1, 1] recognised as their labels (n,) int64; chance is about 0.1."""
    if labels.shape != (len(images),) or len(images) == 0:
        raise ValueError(f"wanted one label an image, at least one; got {len(images)} images, labels {tuple(labels.shape)}")
    return (classifier.predict(images) == labels.to(images.device)).double().mean().item()


def _network() -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))


def _train(images: Tensor, labels: Tensor, generator: torch.Generator) -> nn.Sequential:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in another order would give another network
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(SEED)
            network = _network()
            optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=0.05)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=STEPS)
            for _ in range(STEPS):
                pick = torch.randint(len(images), (BATCH,), generator=generator)
                logits = network(_shift(images[pick], generator))
                loss = F.cross_entropy(logits, labels[pick], label_smoothing=0.05)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    finally:
        torch.set_num_threads(threads)
    return network.eval().requires_grad_(False)


def _shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to one pixel in each direction: a sample a pixel off its place is still that digit."""
    n = len(images)
    top, left = torch.randint(3, (2, n, 1, 1), generator=generator)
    padded = F.pad(images, (1, 1, 1, 1), value=-1.0)[:, 0]
    rows, columns = top + torch.arange(RESOLUTION).view(1, -1, 1), left + torch.arange(RESOLUTION).view(1, 1, -1)
    return padded[torch.arange(n).view(-1, 1, 1), rows, columns].unsqueeze(1)
