"""Ways to feed images, measured in turn: ``python -m benchmarks.data [option=value]``.

Prints images/s of shuffled batches on the device as floats in [-1, 1], with ratios against the first way (decoding each image
when it is needed, in a DataLoader), and the seconds that opening the data takes the first and the second time. Options: images,
resolution, batch_size, workers, seconds, device. The numbers mean nothing on another machine; the ratios mean a little.
"""

from __future__ import annotations

import io
import itertools
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import data
from data import DatasetOptions, DataSource, store, to_float
from training import cli
from training.config import typed
from training.processes import pick_device


@dataclass
class Options:
    """Of the data and the measurement."""

    images: int = 10_000
    resolution: int = 32
    batch_size: int = 64
    workers: int = 2
    seconds: float = 2.0
    device: str = "auto"


class Zip(Dataset):
    """Each image decoded when it is asked for, as most training code does."""

    def __init__(self, path: Path):
        self.path, self.archive = path, None
        with zipfile.ZipFile(path) as archive:
            self.names = archive.namelist()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Tensor:
        if self.archive is None:  # in the worker
            self.archive = zipfile.ZipFile(self.path)
        image = np.array(Image.open(io.BytesIO(self.archive.read(self.names[index]))))
        return torch.from_numpy(image).permute(2, 0, 1)


class Each(Dataset):
    """The images of a store one by one, for a DataLoader to collate."""

    def __init__(self, images: Tensor):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


def make(path: Path, options: Options) -> None:
    """A zip of uncompressed members: smooth pictures with some noise, about as hard to decode as photos."""
    rng, side = np.random.default_rng(0), options.resolution
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(options.images):
            coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((side, side))
            noisy = np.clip(np.asarray(coarse).astype(int) + rng.integers(-4, 5, (side, side, 3)), 0, 255).astype(np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(noisy).save(buffer, "PNG", compress_level=1)
            archive.writestr(f"{k // 1000:05d}/img{k:08d}.png", buffer.getvalue())


def order(options: Options) -> Iterator[Tensor]:
    """Batches of a shuffled set, epoch after epoch."""
    rng = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(options.images, generator=rng).split(options.batch_size)[: options.images // options.batch_size]


def loaded(dataset: Dataset, options: Options, workers: int) -> Iterator[Tensor]:
    """A DataLoader's batches, epoch after epoch."""
    loader = DataLoader(dataset, options.batch_size, shuffle=True, num_workers=workers, drop_last=True,
                        persistent_workers=workers > 0)  # fmt: skip
    return itertools.chain.from_iterable(itertools.repeat(loader))


def from_source(source: DataSource, options: Options) -> Iterator[Tensor]:
    """What the trainer does."""
    with source.ahead(order(options)):
        for indices in order(options):
            yield source.batch(indices)[0]


def rate(batches: Iterator[Tensor], options: Options, device: torch.device) -> float:
    """Images a second, after a warm-up of some batches."""
    for images in itertools.islice(batches, 5):
        to_float(images.to(device))
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        count += len(to_float(next(batches).to(device)))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    found = count / (time.perf_counter() - began)
    if hasattr(batches, "close"):
        batches.close()
    return found


def measure(options: Options, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """(way -> images/s, opening -> seconds); files go to ``folder``."""
    device, path, cache = pick_device(options.device), folder / "images.zip", str(folder / "cache")
    torch.set_num_threads(1)  # reading is what is measured, not how threads wait for each other on a busy machine
    make(path, options)
    store.SMALL = (0, 0)

    def source(**more: Any) -> DataSource:
        return data.build(DatasetOptions("zip", path=str(path), cache=cache, workers=options.workers, **more))

    seconds = {}
    for which in ("first", "second"):
        began = time.perf_counter()
        opened = source()
        assert opened.content_hash
        seconds[f"{which} opening"] = time.perf_counter() - began
    ways = {
        "zip of PNG, DataLoader, no worker": lambda: loaded(Zip(path), options, 0),
        f"zip of PNG, DataLoader, workers={options.workers}": lambda: loaded(Zip(path), options, options.workers),
        "store, DataLoader image by image, no worker": lambda: loaded(Each(opened.images), options, 0),
        "store on disk, read in place (memory_gb=0 workers=0)": lambda: from_source(at(0), options),
        f"store on disk, read ahead (memory_gb=0 workers={options.workers})": lambda: from_source(at(options.workers), options),
        "store on the device (the default where it fits)": lambda: from_source(source(memory_gb=1e9).to(device), options),
    }

    def at(workers: int) -> DataSource:
        return data.build(DatasetOptions("zip", path=str(path), cache=cache, memory_gb=0.0, workers=workers)).to(device)

    return {name: rate(way(), options, device) for name, way in ways.items()}, seconds


def table(rates: dict[str, float], seconds: dict[str, float], options: Options) -> str:
    """Both as text."""
    first, width = next(iter(rates.values())), max(map(len, rates))
    lines = [f"{options.images:,} images of {options.resolution} px, batches of {options.batch_size}"]
    lines += [f"{name:<{width}} {found:>11,.0f} images/s {found / first:>7.1f}" for name, found in rates.items()]
    return "\n".join(lines + [f"{name:<{width}} {took:>11.2f} s" for name, took in seconds.items()])


def job(values: dict[str, Any]) -> int:
    """Measure and print."""
    options = typed(Options, values, "")
    with tempfile.TemporaryDirectory() as folder:
        print(table(*measure(options, Path(folder)), options))
    return 0


if __name__ == "__main__":
    sys.exit(cli.simple_main(job, lambda: __doc__))
