"""The progress bar of a run, and its plain stand-in where nobody watches."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

LINE_EVERY = 30.0  # seconds between plain lines


class _Bar(tqdm):
    """tqdm counts in kimg (so that its numbers stay short); people think in images a second."""

    @property
    def format_dict(self) -> dict[str, Any]:
        values = super().format_dict
        rate = values["rate"]
        if rate is None and values["elapsed"]:
            rate = (values["n"] - values["initial"]) / values["elapsed"]
        counts = {"seen": _kimg(1000 * values["n"]), "goal": _kimg(1000 * values["total"])}
        return {**values, **counts, "images_per_sec": f"{1000 * (rate or 0):,.0f} images/s"}


class Progress:
    """Progress of a run in kimg with images a second, the time left, and the latest values.

    total_images  images seen at the end of the run.
    start_images  images already seen at its start (a resumed run); may be past ``total_images``.
    disable       no bar. Without a bar, also where stderr is no terminal, a plain line is printed after every tenth of the
                  run and at least every 30 seconds while updates come, so that the logs of batch jobs stay readable.

    Everything but :meth:`write` goes to stderr.
    """

    def __init__(self, total_images: int, start_images: int = 0, disable: bool = False):
        self.start = start_images
        self.total = max(total_images, start_images, 1)
        self.seen = start_images
        self._postfix = ""
        self._began = self._last_time = time.monotonic()
        self._last_tenth = self._tenth(start_images)
        self._printed = start_images
        self._bar = None
        if not disable and sys.stderr.isatty():
            self._bar = _Bar(
                total=self.total / 1000, initial=self.start / 1000, unit="kimg", dynamic_ncols=True, leave=True,
                bar_format="{percentage:3.0f}% |{bar}| {seen}/{goal} kimg, {images_per_sec}, {remaining} left{postfix}",
            )  # fmt: skip

    def update(self, images_seen: int, **postfix: Any) -> None:
        """The run has seen ``images_seen`` images; ``postfix``: values to show (floats are shortened)."""
        self.seen = images_seen
        if postfix:
            self._postfix = ", ".join(f"{name} {_short(value)}" for name, value in postfix.items())
        if self._bar is not None:
            self._bar.set_postfix_str(self._postfix, refresh=False)
            self._bar.update(min(images_seen, self.total) / 1000 - self._bar.n)
            return
        now, tenth = time.monotonic(), self._tenth(images_seen)
        if tenth > self._last_tenth or now - self._last_time >= LINE_EVERY:
            self._last_time, self._last_tenth = now, tenth
            self._print_line(now)

    def write(self, text: str) -> None:
        """Print ``text`` to stdout, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Leave the bar (or a last line) as it stands; a second call does nothing."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
        elif self.seen != self._printed:
            self._print_line(time.monotonic())

    def _tenth(self, images: int) -> int:
        return 10 * (images - self.start) // max(self.total - self.start, 1)

    def _print_line(self, now: float) -> None:
        self._printed = self.seen
        rate = (self.seen - self.start) / max(now - self._began, 1e-9)
        percent = min(100 * self.seen / self.total, 100)
        left = tqdm.format_interval(max(self.total - self.seen, 0) / rate) if rate > 0 else "?"
        line = f"{_kimg(self.seen)}/{_kimg(self.total)} kimg ({percent:.0f}%), {rate:,.0f} images/s, {left} left"
        print(line + (f", {self._postfix}" if self._postfix else ""), file=sys.stderr, flush=True)


def _kimg(images: float) -> str:
    """Thousands of images, with as many decimals as are worth reading."""
    return f"{images / 1000:.1f}" if images >= 10_000 else f"{images / 1000:.3f}"


def _short(value: Any) -> str:
    """A number with four digits, anything else as it is."""
    if hasattr(value, "item"):
        value = value.item()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
