"""Checkpoints of toys without training."""

from __future__ import annotations

from pathlib import Path

import torch

import training.main
from training import checkpoint
from training.config import build_config, plain
from training.engine import Engine
from training.processes import Processes


def save_toy(run: Path, values: dict, images_seen: int = 0, steps: int = 0, spread: float = 0.3) -> Path:
    """A checkpoint as the driver saves them, of a model with weights moved at random by ``spread``; the run folder's path."""
    config, _ = build_config(values)
    config.schedule_kimg = config.total_kimg
    source, gan = training.main.build(config)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in gan.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=rng))
    engine = Engine(gan, source, config, Processes("cpu"))
    for _ in range(steps):
        engine.step()
    state = engine.state()
    state["clock"]["images_seen"] = images_seen or state["clock"]["images_seen"]
    state |= {
        "config": plain(config), "spec": {**vars(source.spec), "class_names": list(source.spec.class_names)},
        "content_hash": source.content_hash, "values": dict(engine.values), "best": None,
    }  # fmt: skip
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    checkpoint.save(run / "checkpoints", checkpoint.to_cpu(state), keep=100, best=False)
    return run
