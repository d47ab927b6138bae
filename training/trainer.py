"""The loop of a run: steps, and what is written when. Reads top to bottom; the numbers are made in engine.py."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from data import Spec
from errors import UserError
from gans.base import GAN, Clock
from training import checkpoint
from training.config import Config, plain
from training.engine import Diverged, Engine
from training.evaluation import Best, Evaluator, evaluator
from training.folder import RunFolder, cut_back, lock
from training.forms import form_of
from training.log import JsonLines, kimg_name
from training.loggers import Logger, build_loggers
from training.plots import plot_losses
from training.processes import Processes
from training.progress import Progress
from training.sampling import grid_samples


class Stopped(Exception):
    """The run was asked to stop (Ctrl-C, SIGTERM) and has saved a checkpoint."""


class Trainer:
    """Trains ``gan`` on ``source`` in ``folder`` until ``config.total_kimg``; ``start``: a checkpoint's content to go on from."""

    def __init__(
        self,
        gan: GAN,
        source: Any,
        config: Config,
        processes: Processes,
        folder: RunFolder,
        start: dict[str, Any] | None = None,
    ):
        self.config, self.processes, self.folder = config, processes, folder
        self.loggers: list[Logger] = []
        self.log: JsonLines | None = None
        self.progress: Progress | None = None
        self._lock: int | None = None
        self.spec: Spec = source.spec
        self.content_hash = source.content_hash
        self.source = source.to(processes.device)
        self.engine = Engine(gan, self.source, config, processes)
        self.evaluate: Evaluator | None = evaluator(gan, self.source, config, processes, self._say)
        self.best = Best.of(self.evaluate)
        self.resumed = start is not None
        if start is not None:
            self.engine.load_state(start)
            self.best.load(start["best"])
        self.total_images = round(1000 * config.total_kimg)
        self.last_results: dict[str, float] = {}
        self.uncertain: set[str] = set()  # operations without a deterministic kernel
        self._stop_signal: int | None = None

    def run(self) -> None:
        """Train, writing as the config says. Diverged and Stopped leave the run folder in a state to go on from."""
        if self.processes.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.processes.device)
        try:
            if self.processes.first:
                self._open()
            self._run()
        finally:
            if self.processes.first:
                self._close()
        self._finish()

    def _run(self) -> None:
        engine, config, first = self.engine, self.config, self.processes.first
        self._say_once()
        if engine.clock.step == 0:
            self._pictures()
            self._save()
        self._mark_time()

        with self._signals(), self._watch_determinism(), self.source.ahead(engine.coming()):
            while engine.clock.images_seen < self.total_images:
                before = engine.clock
                engine.step()
                now, last = engine.clock, engine.clock.images_seen >= self.total_images

                def due(every_kimg: float, before: Clock = before, now: Clock = now, last: bool = last) -> bool:
                    every = max(1, round(1000 * every_kimg))  # in images: 0.3 // 0.1 is 2
                    return last or bool(every_kimg) and now.images_seen // every > before.images_seen // every

                stop = self._stop_signal is not None and self.processes.count == 1
                if due(config.log.every_kimg):
                    self._log()
                if due(config.sample.every_kimg):
                    self._pictures()
                evaluated = self.evaluate is not None and due(config.eval.every_kimg)
                best = self._evaluate() if evaluated else False
                if due(config.checkpoint.every_kimg) or evaluated or stop:
                    self._save(best)
                if first:
                    self.progress.update(now.images_seen, **self._postfix())
                if stop and not last:
                    raise Stopped(f"stopped at {now.kimg:g} kimg by signal {self._stop_signal}")
        if first:
            plot_losses(JsonLines.read(self.folder.log), self.folder.losses)
            for logger in self.loggers:
                logger.picture("loss", self.folder.losses, engine.clock.images_seen)

    # what is written -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        clock = self.engine.clock
        self._lock = lock(self.folder)
        if self.resumed:
            cut_back(self.folder, clock.step, clock.images_seen)
            checkpoint.prune(self.folder.checkpoints, self.config.checkpoint.keep)  # a kill may have come before it
        else:
            checkpoint.clean(self.folder.checkpoints)
        self._check_best()
        self.folder.write_config(plain(self.config))
        self.log = JsonLines(self.folder.log)
        self.progress = Progress(self.total_images, clock.images_seen, disable=os.environ.get("TERM") == "dumb")
        self.loggers = build_loggers(
            self.config.logger,
            self.folder.path,
            plain(self.config),
            resume=self.resumed,
            say=self.progress.write,
            images_seen=clock.images_seen,
        )

    def _check_best(self) -> None:
        """A best checkpoint from past the one that the run goes on from belongs to a future that is given up."""
        path = self.folder.checkpoints / "best.pt"
        if not path.exists():
            return
        try:
            stale = checkpoint.load(path)["clock"]["images_seen"] > self.engine.clock.images_seen
        except UserError:  # damaged: nothing that the run needs
            stale = True
        if stale:
            path.unlink()
            self.best.value = None

    def _log(self) -> None:
        engine = self.engine
        means = engine.pop_means()
        now = time.perf_counter()
        images = engine.clock.images_seen - self._marked_images
        seconds = max(now - self._marked, 1e-9)
        line: dict[str, Any] = {
            "step": engine.clock.step,
            "images_seen": engine.clock.images_seen,
            "kimg": engine.clock.kimg,
            "sec_per_kimg": 1000 * seconds / max(images, 1),
            "images_per_sec": images / seconds,
            "memory_gb": memory_gb(self.processes.device),
            **means,
            **{f"value/{name}": value for name, value in engine.values.items()},
        }
        self._write(line)
        self.last_means = means
        self._mark_time()

    def _write(self, line: dict[str, Any]) -> None:
        if self.processes.first:
            self.log.write(line)
            for logger in self.loggers:
                logger.scalars(line["step"], line["images_seen"], {k: v for k, v in line.items() if k != "step"})

    def _pictures(self) -> None:
        if self.processes.first:
            with self._untimed():
                engine, options = self.engine, self.config.sample
                images, titles = grid_samples(
                    engine.ema_gan(), self.spec, self.config.seed, options.rows, options.columns, self.processes.device
                )
                path = self.folder.samples / f"{kimg_name(engine.clock.images_seen)}.png"
                form_of(self.spec).picture(path, images, self.spec, options.columns, titles)
                for logger in self.loggers:
                    logger.picture("samples", path, engine.clock.images_seen)
        self.processes.wait()

    def _evaluate(self) -> bool:
        """Measure the EMA samples; whether they are the best so far (known to the first process)."""
        best, clock = False, self.engine.clock
        with self._untimed():
            results = self.evaluate(self.engine.ema_gan())
        if self.processes.first:
            self.last_results = results
            self._write({
                "step": clock.step, "images_seen": clock.images_seen, "kimg": clock.kimg,
                **{f"eval/{name}": value for name, value in results.items()},
            })  # fmt: skip
            best = self.best.update(next(iter(results.values())), clock.images_seen)
        self.processes.wait()
        return best

    def _save(self, best: bool = False) -> None:
        state = self.engine.state()
        bad = checkpoint.nonfinite({"gan": state["gan"], "ema": state["ema"]})
        if bad is not None:  # in every process alike; no later step could mend it
            clock = self.engine.clock
            raise Diverged(f"step {clock.step} ({clock.kimg:g} kimg): {bad} is not finite, so nothing was saved")
        if self.processes.first:
            with self._untimed():
                state |= {
                    "config": plain(self.config),
                    "spec": {**vars(self.spec), "class_names": list(self.spec.class_names)},
                    "content_hash": self.content_hash,
                    "values": dict(self.engine.values),
                    "best": self.best.state(),
                }
                checkpoint.save(self.folder.checkpoints, checkpoint.to_cpu(state), self.config.checkpoint.keep, best)
        self.processes.wait()

    def _close(self) -> None:
        for part in (*self.loggers, self.log, self.progress):
            if part is not None:
                part.close()
        if self._lock is not None:
            os.close(self._lock)

    def _finish(self) -> None:
        """Say what came out and where it lies."""
        if not self.processes.first:
            return
        if self.config.deterministic:
            found = ", ".join(sorted(self.uncertain)) or "none"
            print(f"operations without a deterministic kernel: {found}")
        for name, value in self.last_results.items():
            best = f"; {self.best}" if name == self.best.name else ""
            print(f"eval/{name}: {value:.4f} ({self.config.eval.samples} samples, EMA weights{best})")
        folder = self.folder
        last = f"{kimg_name(self.engine.clock.images_seen)}.png"
        print(f"done: {self.engine.clock.kimg:g} kimg in {self.engine.clock.step} steps")
        for title, path in (
            ("samples", folder.samples / last), ("curves", folder.losses), ("log", folder.log),
            ("config", folder.config), ("checkpoint", folder.checkpoints / "latest.pt"),
        ):  # fmt: skip
            if path.exists():
                print(f"  {title:<10} {path}")
        print(f"sample from it: python sample.py checkpoint={folder.path}")

    # small things --------------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self.processes.first:
            print(text, flush=True) if self.progress is None else self.progress.write(text)

    def _postfix(self) -> dict[str, float]:
        """Two or three numbers beside the bar: the losses of the last log line."""
        means = getattr(self, "last_means", {})
        return {name.split("/")[0]: value for name, value in means.items() if name.endswith("/loss")}

    def _mark_time(self) -> None:
        self._marked, self._marked_images = time.perf_counter(), self.engine.clock.images_seen

    @contextlib.contextmanager
    def _untimed(self):
        """Keep pictures, evaluation and saving out of images/s."""
        began = time.perf_counter()
        yield
        if hasattr(self, "_marked"):
            self._marked += time.perf_counter() - began

    def _say_once(self) -> None:
        if not self.processes.first:
            return
        engine, say = self.engine, self.progress.write
        sizes = ", ".join(f"{name} {sum(p.numel() for p in ps):,}" for name, ps in engine.sets.items())
        form = form_of(self.spec)
        say(f"{self.config.gan.name} on {self.spec.name} ({len(self.source):,} {form.what}, {form.size(self.spec)}), "
            f"parameters: {sizes}; {self.processes.device}, {self.config.precision}")
        say(f"loss {_in_words(self.config.loss)}, penalty {_in_words(self.config.penalty)}")
        say(f"run folder: {self.folder.path}" + (f", resumed at {engine.clock.kimg:g} kimg" if self.resumed else ""))
        for remark in engine.gan.remarks():
            say(remark)
        split = self.processes.count > 1 or (self.config.micro_batch or engine.batch_size) < engine.batch_size
        coupled = engine.gan.batch_coupled()
        if self.evaluate is not None:
            say(f"evaluation: {self.evaluate.describe()}")
        if split and coupled:
            say(f"batch-coupled parts see one micro-batch of one process at a time: {', '.join(coupled)}")

    @contextlib.contextmanager
    def _signals(self):
        """Ctrl-C and SIGTERM finish the step and save; a second one ends at once."""

        def ask(number: int, _: Any) -> None:
            if self._stop_signal is not None:
                raise KeyboardInterrupt
            self._stop_signal = number
            print("stopping after this step (again to stop at once) …", file=sys.stderr)

        old: dict[int, Any] = {}
        if self.processes.count == 1:
            with contextlib.suppress(ValueError):  # only a main thread may set handlers
                old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def _watch_determinism(self):
        if not self.config.deterministic:
            yield
            return
        show: Callable = warnings.showwarning

        def note(message: Any, *rest: Any, **more: Any) -> None:
            text = str(message)
            if "does not have a deterministic implementation" in text:
                self.uncertain.add(text.split()[0])
            else:
                show(message, *rest, **more)

        with warnings.catch_warnings():
            warnings.filterwarnings("always", message=".*does not have a deterministic implementation.*")
            warnings.showwarning = note
            yield


def _in_words(options: Mapping[str, Any]) -> str:
    """``r1_r2 (gamma 1, interval 1)``"""
    more = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in options.items() if
                     name != "name")  # fmt: skip
    return options["name"] + (f" ({more})" if more else "")


def memory_gb(device: torch.device) -> float:
    """Peak memory in GB: of the device's allocator on CUDA, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak / 1e6
