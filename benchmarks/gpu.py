"""Prove the CUDA side on a GPU in one call: ``python -m benchmarks.gpu [minutes=5 path=cifar10.zip out=gpu-report]``.

1. Gradients of every family on CUDA in fp32, tf32, bf16 and fp16 against the CPU's.
2. A CUDA run is continued after a stop with the same bits when no operation lacks a deterministic kernel.
3. Ways to compute a step, as ratios, with peak memory (benchmarks.step), at the CIFAR-10 recipe's width.
4. The CIFAR-10 recipe trained for ``minutes``: images/s, peak memory, sample grid, log, in ``out``.
Exit status 1 if 1 or 2 fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.step import CUDA_WAYS, NARROW, WAYS, Options, Way, build_engine, measure, table
from errors import UserError
from training import cli
from training.config import typed
from training.engine import Engine
from training.log import JsonLines

TOLERANCES = {"fp32": 1e-3, "tf32": 3e-2, "bf16": 1.5e-1, "fp16": 5e-2}
"""Largest relative error (2-norm over a parameter set) of gradients against the CPU in fp32. On the CPU, bf16 is up to 0.11
off (G of the patch model), fp16 up to 0.035."""


@dataclass
class GpuOptions:
    """minutes of the recipe (0: none); path of CIFAR-10 (None: download); out: folder of the report."""

    minutes: float = 5.0
    path: str | None = None
    out: str = "gpu-report"


def gradients(device: str, precision: str, model: str = "r3gan") -> dict[str, torch.Tensor]:
    """Unscaled gradients of both phases of a narrow model, flat, on the CPU."""
    options = Options(batch_size=16, device=device)
    engine = build_engine(options, Way("", True, True, precision), NARROW[model])
    rng = torch.Generator().manual_seed(3)
    for parameters in engine.sets.values():  # a fresh network's last layers are zero and would hide the others' gradients
        for parameter in parameters:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=rng).to(parameter.device)
    scale = min(scaler.get_scale() for scaler in engine.scalers.values())
    while True:
        found = _gradients_at(engine, scale)
        if scale <= 1 or all(gradient.isfinite().all() for gradient in found.values()):
            return found
        scale /= 16  # under fp16 the first scale is meant to overflow; all phases again, since they share tensors


def _gradients_at(engine: Engine, scale: float) -> dict[str, torch.Tensor]:
    found = {}
    for phase in engine.phases:
        scaler = engine.scalers[phase.trains]
        if scaler.is_enabled():
            scaler.update(scale)
        engine.gradients(phase)
        grads = [p.grad.float().reshape(-1) for p in engine.sets[phase.trains] if p.grad is not None]
        found[phase.name] = torch.cat(grads).cpu() / scaler.get_scale()
    return found


def check_gradients() -> bool:
    """Print the relative errors; whether all are within ``TOLERANCES``."""
    good = True
    for model in NARROW:
        right = gradients("cpu", "fp32", model)
        for precision, tolerance in TOLERANCES.items():
            for phase, gradient in gradients("cuda", precision, model).items():
                error = float((gradient - right[phase]).norm() / right[phase].norm())
                good &= error <= tolerance
                print(f"{model:<16} {phase:<14} {precision:<5} relative error {error:.2e} (allowed {tolerance:.0e})")
    return good


def train(*options: str) -> str:
    """Run train.py and return what it printed."""
    command = [sys.executable, "train.py", *options]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def check_resume() -> bool:
    """Whether 2N steps equal N + N on CUDA (claimed only where every operation has a deterministic kernel)."""
    with tempfile.TemporaryDirectory() as folder:
        common = ["device=cuda", "deterministic=true", "eval.samples=0", "schedule_kimg=1.28", "checkpoint.every_kimg=0.64"]
        printed = train(*common, "total_kimg=1.28", f"run_dir={folder}/whole")
        train(*common, "total_kimg=0.64", f"run_dir={folder}/half")
        train(f"resume={folder}/half", "total_kimg=1.28")
        states = [torch.load(f"{folder}/{run}/checkpoints/latest.pt", weights_only=True) for run in ("whole", "half")]
    equal = all(torch.equal(a, states[1]["gan"][name]) for name, a in states[0]["gan"].items())
    uncertain = [line for line in printed.splitlines() if line.startswith("operations without a deterministic kernel")]
    print(f"resume on CUDA bit for bit: {equal}; {uncertain[0] if uncertain else ''}")
    return equal or not uncertain[0].endswith("none")


def recipe(options: GpuOptions) -> None:
    """Train the CIFAR-10 recipe for ``options.minutes`` and report speed and memory."""
    run_dir = Path(options.out) / "r3gan-cifar10"
    command = [
        sys.executable, "train.py", "gan=r3gan", "dataset=cifar10", "device=cuda", f"run_dir={run_dir.resolve()}",
        "log.every_kimg=2", "sample.every_kimg=50", "checkpoint.every_kimg=50", "checkpoint.keep=1", "eval.samples=0",
        *([f"dataset.path={Path(options.path).resolve()}"] if options.path else []),
    ]  # fmt: skip
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(command, cwd=root)
    try:
        process.wait(60 * options.minutes)
    except subprocess.TimeoutExpired:
        process.terminate()  # finishes its step and saves
        process.wait(120)
    lines = [line for line in JsonLines.read(run_dir / "log.jsonl") if "images_per_sec" in line]
    if lines:
        last = lines[-1]
        print(json.dumps({name: last[name] for name in ("kimg", "images_per_sec", "memory_gb", "discriminator/real_above_fake")}))


def job(values: dict[str, Any]) -> int:
    """Everything, in order."""
    options = typed(GpuOptions, values, "")
    if not torch.cuda.is_available():
        raise UserError("benchmarks.gpu needs a CUDA device, and torch sees none here")
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    good = check_gradients()
    good &= check_resume()
    for width, cardinality, batch in ((96, 12, 256), (768, 96, 64)):
        print(f"a step at width {width} x 4, cardinality {cardinality}, batch {batch}, 32 px")
        shape = Options(width=width, cardinality=cardinality, batch_size=batch, device="cuda")
        print(table(measure(shape, WAYS + CUDA_WAYS)))
    if options.minutes:
        recipe(options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(cli.simple_main(job, __doc__))
