"""Runs of the toys in processes of their own, which can be killed at chosen moments.

As a script (also under torchrun): ``python tests/toy_run.py '{"values": {...}, "explicit": [...], "die_at": ["save", 1]}'``.
From tests: :func:`start`, which forks from a server that has imported everything, so that a process costs 0.1 s.
"""

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import toys

import training.main
import training.plots
import training.trainer
from training.cli import Arguments, guard
from training.config import build_config
from training.engine import Engine
from training.processes import Processes

TOUCHES = ("replace", "link", "unlink", "fsync", "write")  # of module os; and torch.save


def train(values: dict, explicit: list[str] = (), die_at: tuple[str, int] | None = None, touches: str | None = None,
          slow: float = 0.0, evaluate: bool = False) -> int:  # fmt: skip
    """``training.main.train`` with status 2 for a user's mistake.

    die_at    (kind, n): SIGKILL this process at its n-th touch of the disk (0 is the first) of a kind ("any": of all), after
              half of what it would have written.
    touches   a file that gets one line for each touch.
    slow      seconds to sleep at each touch, so that a kill from outside lands inside one.
    evaluate  a cheap measure stands in for the evaluation, so that there is a best checkpoint.
    """
    toys.register()
    watch_disk(die_at, touches, slow)
    training.trainer.plot_losses = lambda lines, path: Path(path).touch()  # half a second; tested elsewhere
    if evaluate:
        training.trainer.evaluator = lambda gan, source, config, processes, say: Roughly() if config.eval.samples else None
    return guard(lambda: training.main.train(values, Arguments(explicit=list(explicit))))


class Roughly:
    """A number that goes up and down with the EMA weights."""

    name, higher_is_better = "roughly", True

    def __call__(self, gan) -> dict[str, float]:
        total = sum(p.sum() for name in gan.ema_modules for p in getattr(gan, name).parameters())
        return {"roughly": float((1000 * total).sin())}

    def describe(self) -> str:
        return "roughly"


def watch_disk(die_at: tuple[str, int] | None, touches: str | None, slow: float) -> None:
    kind, left = die_at or ("none", 0)
    log = open(touches, "a", buffering=1) if touches else None  # a Python file: not seen by the patched os.write

    def dies(what: str) -> bool:
        nonlocal left
        if log:
            print(what, file=log)
        time.sleep(slow)
        left -= kind in (what, "any")
        return left < 0

    def watched(name: str):
        real = getattr(os, name)

        def call(*args, **kwargs):
            if dies(name):
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    real_save = torch.save

    def save(state, file):
        if dies("save"):
            buffer = io.BytesIO()
            real_save(state, buffer)
            file.write(buffer.getvalue()[: buffer.tell() // 2])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        real_save(state, file)

    for name in TOUCHES:
        setattr(os, name, watched(name))
    torch.save = save


def build_engine(values: dict, prepare: Callable | None = None) -> Engine:
    """An engine with a freshly initialised GAN whose zero-initialised layers are moved, so that every gradient shows.

    prepare  is called with the GAN before the engine gets it.
    """
    toys.register()
    config, _ = build_config(values)
    config.schedule_kimg = config.schedule_kimg or config.total_kimg
    source, gan = training.main.build(config)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in gan.parameters():
            if not parameter.any():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=rng))
    if prepare is not None:
        prepare(gan)
    return Engine(gan, source, config, Processes(config.device))


def all_gradients(engine: Engine) -> dict[str, torch.Tensor]:
    """The gradient that every phase of one step leaves, without any update: the engine stays as it was."""
    found, state = {}, copy.deepcopy(engine.gan.state_dict())
    for phase in engine.phases:
        engine.gradients(phase)
        for i, parameter in enumerate(engine.sets[phase.trains]):
            if parameter.grad is not None:
                found[f"{phase.name}.{i}"] = parameter.grad.detach().clone()
    engine.gan.load_state_dict(state)  # BatchNorm statistics
    engine.totals, engine.counts, engine._stats, engine._shared = {}, {}, {}, {}
    return found


def report(values: dict, path: str, steps: int) -> int:
    """Save, in ``path``-<rank>, the gradients of the first step and the state and logged means after ``steps`` steps."""
    engine = build_engine(values)
    gradients = all_gradients(engine)
    for _ in range(steps):
        engine.step()
    found = {"gradients": gradients, "gan": engine.gan.state_dict(), "means": engine.pop_means()}
    torch.save(found, f"{path}-{engine.processes.rank}")
    engine.processes.close()
    return 0


JOBS = {"train": train, "report": report}


def child(job: str, options: dict, output: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.stdout.flush()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(JOBS[job](**options))


_context = multiprocessing.get_context("forkserver")


def start(job: str, options: dict, output: Path, processes: int = 1) -> list[multiprocessing.Process]:
    """Start ``job`` in fresh process(es), a gloo group if there are several; what they print goes to the file ``output``."""
    here = Path(__file__).resolve().parent
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, filter(None, (here, here.parent, old))))
    _context.set_forkserver_preload(["toy_run", "accelerate", "accelerate.utils", "torch._dynamo", "torch._inductor"])
    environment: dict[str, str] = {}
    if processes > 1:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1])}
        environment |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    group = []
    try:
        for rank in range(processes):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
            group.append(_context.Process(target=child, args=(job, options, str(output), environment | ranks), daemon=True))
            group[-1].start()
    finally:
        os.environ.pop("PYTHONPATH") if old is None else os.environ.update(PYTHONPATH=old)
    return group


def wait(group: list[multiprocessing.Process], seconds: float = 120) -> list[int | None]:
    """Exit statuses (-9: killed); processes that outlive ``seconds`` are killed and count as None."""
    statuses = []
    for process in group:
        process.join(seconds)
        statuses.append(process.exitcode)
        if process.exitcode is None:
            process.kill()
    return statuses


if __name__ == "__main__":
    sys.exit(train(**json.loads(sys.argv[1])))
