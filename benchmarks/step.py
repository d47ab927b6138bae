"""Ways to compute one R3GAN step (D with R1 + R2, then G), measured in turn: ``python -m benchmarks.step [option=value]``.

Prints ratios against the first way; the seconds beside them mean nothing on another machine. Options: width, cardinality,
resolution, batch_size, rounds, device.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

import nets.blocks
from data import DataSource, Spec
from training import cli
from training.config import Config, build_config, typed
from training.engine import Engine
from training.main import _set_backends
from training.processes import Processes


@dataclass
class Options:
    """Of the network and the measurement; small enough for two CPU cores by default."""

    width: int = 96
    cardinality: int = 12
    resolution: int = 32
    batch_size: int = 16
    rounds: int = 3
    device: str = "auto"


NARROW = {
    "r3gan": ("gan=r3gan", "gan.width=32", "gan.cardinality=4", "gan.conditional=true"),
    "dcgan": ("gan=dcgan", "gan.width_g=8", "gan.width_d=8", "gan.norm_d=layer", "penalty=r1_r2"),
    "acgan, patches": (
        "gan=acgan", "gan.width_g=8", "gan.width_d=8", "gan.discriminator=patch", "gan.patch_field=34", "gan.dropout=0",
    ),
    "wgan_gp, resnet": ("gan=wgan_gp", "gan.generator=resnet", "gan.discriminator=resnet", "gan.width_g=16", "gan.width_d=16"),
    "vanilla": ("gan=vanilla", "gan.width=64", "penalty=dragan"),
}  # fmt: skip
"""Small models of every family, for checks of gradients: their name, their part of the command line."""


@dataclass(frozen=True)
class Way:
    """One way to run the step."""

    name: str
    own_conv: bool
    channels_last: bool
    precision: str


WAYS = (
    Way("torch conv2d, contiguous, fp32", False, False, "fp32"),
    Way("own conv2d,   contiguous, fp32", True, False, "fp32"),
    Way("own conv2d, channels_last, fp32", True, True, "fp32"),
    Way("torch conv2d, channels_last, bf16", False, True, "bf16"),
    Way("own conv2d, channels_last, bf16", True, True, "bf16"),
)
CUDA_WAYS = (
    Way("own conv2d, channels_last, tf32", True, True, "tf32"),
    Way("own conv2d, channels_last, fp16", True, True, "fp16"),
)


def config_of(options: Options, way: Way, model: Sequence[str] | None = None) -> Config:
    """The config of a run under ``way``: of a conditional R3GAN of the options' width, or of ``model``."""
    r3gan = ("gan=r3gan", f"gan.width={options.width}", f"gan.cardinality={options.cardinality}", "gan.conditional=true")
    argv = [
        *(model or r3gan),
        f"batch_size={options.batch_size}", f"precision={way.precision}", f"channels_last={way.channels_last}".lower(),
        f"device={options.device}", "dataset.xflip=true",
    ]  # fmt: skip
    arguments = cli.parse(argv)
    config, _ = build_config(cli.compose(arguments), arguments.explicit)
    return config


def random_source(options: Options) -> DataSource:
    """Uniform noise with ten classes, as images."""
    rng = torch.Generator().manual_seed(0)
    n, r = max(256, options.batch_size), options.resolution
    images = torch.randint(256, (n, 3, r, r), generator=rng, dtype=torch.uint8)
    return DataSource(images, torch.arange(n) % 10, Spec("noise", r, 3, 10))


def build_engine(options: Options, way: Way, model: Sequence[str] | None = None) -> Engine:
    """An engine ready to step under ``way``; ``model`` as in :func:`config_of`."""
    import gans

    config = config_of(options, way, model)
    config.schedule_kimg = config.total_kimg
    processes = Processes(config.device)
    _set_backends(config)
    source = random_source(options)
    torch.manual_seed(0)
    gan = gans.build(config.gan, source.spec, config.loss, config.penalty)
    return Engine(gan, source.to(processes.device), config, processes)


@contextmanager
def convolution(own: bool):
    """Within, the networks use our conv2d or torch's."""
    ours = nets.blocks.conv2d
    if not own:
        nets.blocks.conv2d = lambda x, weight, bias=None, **more: F.conv2d(x, weight, bias, **more)
    try:
        yield
    finally:
        nets.blocks.conv2d = ours


def measure(options: Options, ways: tuple[Way, ...]) -> list[dict[str, Any]]:
    """Median seconds of a step for each way, rounds taken in turn, and on CUDA the peak memory in GB."""
    results: list[dict[str, Any]] = [{"way": way, "seconds": [], "memory_gb": None} for way in ways]
    for turn in range(options.rounds + 1):
        for result in results:
            way: Way = result["way"]
            engine = build_engine(options, way)
            cuda = engine.device.type == "cuda"
            with convolution(way.own_conv):
                engine.step()  # warm up
                if cuda:
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                engine.step()
                if cuda:
                    torch.cuda.synchronize()
                    result["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
            if turn:  # the first turn also pays for page faults and kernel selection
                result["seconds"].append(time.perf_counter() - began)
            del engine
    return results


def table(results: list[dict[str, Any]]) -> str:
    """The results as text, ratios against the first."""
    base = statistics.median(results[0]["seconds"])
    lines = []
    for result in results:
        seconds = statistics.median(result["seconds"])
        memory = "" if result["memory_gb"] is None else f"   {result['memory_gb']:.2f} GB"
        lines.append(f"{result['way'].name:<36} {seconds / base:5.2f}   ({seconds:.3f} s){memory}")
    return "\n".join(lines)


def job(values: dict[str, Any]) -> None:
    """Measure and print."""
    options = typed(Options, values, "")
    device = Processes(options.device).device
    options = replace(options, device=str(device))
    ways = WAYS + (CUDA_WAYS if device.type == "cuda" else ())
    print(f"{options}; {torch.get_num_threads()} CPU threads; torch {torch.__version__}")
    print(table(measure(options, ways)))


if __name__ == "__main__":
    sys.exit(cli.simple_main(job, __doc__))
