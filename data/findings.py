"""What was seen of a data set's files while they were read, and what a person should do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data.collection import Facts

SHOWN = 5  # names in a line
IMBALANCE = 10  # largest class over smallest, from which on it is worth a line

ADVICE = {
    "1": "black and white; becomes gray, nothing to do",
    "LA": "gray with transparency; laid over white, flatten them yourself for another background",
    "P": "palette; becomes RGB, nothing to do",
    "PA": "palette with transparency; laid over white, flatten them yourself for another background",
    "RGBA": "RGB with transparency; laid over white, flatten them yourself for another background",
    "CMYK": "converted without a colour profile; convert them to RGB yourself if exact colours matter",
    "YCbCr": "becomes RGB, nothing to do",
    "LAB": "becomes RGB, nothing to do",
    "I": "gray of 16 bits; scaled to 8 bits, convert them yourself if they use only a part of the range",
}


class Line(NamedTuple):
    """One line of a report: level "ok", "note" (worth a look) or "stop" (training would not start)."""

    level: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<5}{self.text}"


@dataclass
class Findings:
    """Counts over all images that can be read, and lists of those that cannot or are there twice.

    ``sizes`` are upright "WxH"; ``duplicates`` are (name, name of the first with these very pixels, whether their labels
    differ); ``per_class`` is (class name or number, images), empty without labels.
    """

    count: int = 0
    gray: int = 0
    rotated: int = 0
    smallest: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    duplicates: list[tuple[str, str, bool]] = field(default_factory=list)
    per_class: list[tuple[str, int]] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, facts: Facts, gray: bool) -> None:
        """Count one readable image."""
        self.count += 1
        self.gray += gray
        self.rotated += facts.rotated
        self.kinds[facts.kind] += 1
        self.modes["I" if facts.mode.startswith("I") else facts.mode] += 1
        self.sizes[f"{facts.width}x{facts.height}"] += 1
        side = min(facts.width, facts.height)
        self.smallest = min(self.smallest or side, side)

    def plain(self) -> dict[str, Any]:
        """As plain containers, for JSON; of many sizes only the most frequent."""
        return {**vars(self), "sizes": dict(self.sizes.most_common(1000))}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Findings:
        """Back from :meth:`plain`."""
        found = cls(**values)
        for name in ("kinds", "modes", "sizes"):
            setattr(found, name, Counter(getattr(found, name)))
        for name in ("unreadable", "duplicates", "per_class"):
            setattr(found, name, [tuple(entry) for entry in getattr(found, name)])
        return found

    def lines(
        self, resolution: int | None = None, pad_to: int | None = None, batch_size: int | None = None, strict: bool = True,
        most: int | None = None,
    ) -> Iterator[Line]:  # fmt: skip
        """The report for training at ``resolution`` (None: native) in batches of ``batch_size``; each line says what to do.
        At ``most`` that many unreadable files are named (None: all)."""
        yield from self._unreadable(strict, most)
        if not self.count:
            return
        yield Line("ok", f"{_images(self.count)}: {_counts(self.kinds)}")
        yield from self._modes()
        yield from self._sizes(resolution, pad_to)
        yield from self._classes()
        yield from self._duplicates()
        if self.ignored:
            yield Line("ok", f"not images and left alone: {_counts(self.ignored)}; nothing to do")
        for note in self.notes:
            yield Line("note", note)
        if batch_size is not None and self.count < batch_size:
            yield Line("stop", f"{_images(self.count)} for batch_size={batch_size}: lower batch_size or add images")

    def _unreadable(self, strict: bool, most: int | None) -> Iterator[Line]:
        for name, reason in self.unreadable[:most]:
            yield Line("stop" if strict else "note", reason if name in reason else f"{name}: {reason}")
        if self.unreadable:
            count = _images(len(self.unreadable))
            if strict:
                yield Line("stop", f"{count} cannot be read: replace or remove them, or set dataset.on_error=skip")
            else:
                yield Line("note", f"{count} left out (dataset.on_error=skip): replace or remove them")

    def _modes(self) -> Iterator[Line]:
        plain = {mode: n for mode, n in self.modes.items() if mode not in ADVICE}
        if plain:
            text = f"modes {_counts(plain)}"
            if self.gray and self.gray < self.count:
                text += f"; {self.gray:,} gray images among colour get three equal channels, remove them if they are strays"
            yield Line("ok", text)
        for mode, n in self.modes.items():
            if mode in ADVICE:
                yield Line("ok" if "nothing to do" in ADVICE[mode] else "note", f"{_images(n)} of mode {mode}: {ADVICE[mode]}")
        if self.rotated:
            yield Line("ok", f"{_images(self.rotated)} turned upright as their EXIF entry says; nothing to do")

    def _sizes(self, resolution: int | None, pad_to: int | None) -> Iterator[Line]:
        text = f"sizes {_counts(dict(self.sizes.most_common(SHOWN)))}"
        if len(self.sizes) > SHOWN:
            text += f" and {len(self.sizes) - SHOWN:,} more"
        uneven = sum(n for size, n in self.sizes.items() if len(set(size.split("x"))) > 1)
        smallest = max(self.smallest, pad_to or 0)
        side = resolution or smallest
        if len(self.sizes) > 1 and resolution is None:
            power = 1 << (smallest.bit_length() - 1)
            yield Line("stop", f"{text}: set dataset.resolution (the smallest side is {smallest}, so {power} for example)")
            return
        yield Line("ok", f"{text}, used at {side}x{side}" + (f"; {uneven:,} not square: the centre is kept" if uneven else ""))
        if resolution is not None and smallest < resolution:
            yield Line("note", f"some are smaller than dataset.resolution={resolution} (smallest side {smallest}) and are "
                               "enlarged: lower it, or remove the small ones")  # fmt: skip
        elif side & (side - 1):
            power = 1 << side.bit_length()
            yield Line("note", f"most models want a side of 2^k, not {side}: set dataset.resolution={power // 2}, "
                               f"or dataset.pad_to={power}")  # fmt: skip

    def _classes(self) -> Iterator[Line]:
        if not self.per_class:
            yield Line("ok", "no labels: fine for unconditional models; for others make one sub-folder a class, or label them "
                             "in a dataset.json")  # fmt: skip
            return
        counts = [n for _, n in self.per_class]
        low, high = min(self.per_class, key=lambda c: c[1]), max(self.per_class, key=lambda c: c[1])
        empty = [name for name, n in self.per_class if not n]
        yield Line("ok", f"{len(counts)} classes, {low[1]:,} to {high[1]:,} images each")
        if empty:
            yield Line("note", f"{len(empty)} classes without images ({_names(empty)}): number them without gaps, or add images")
        full = [c for c in self.per_class if c[1]]
        low = min(full, key=lambda c: c[1])
        if high[1] >= IMBALANCE * low[1]:
            yield Line("note", f"unbalanced: class {low[0]} has {_images(low[1])}, class {high[0]} {high[1]:,}; add images to "
                               "the small classes, or merge them")  # fmt: skip

    def _duplicates(self) -> Iterator[Line]:
        if self.duplicates:
            shown = _names([f"{name} = {first}" for name, first, _ in self.duplicates], 3)
            yield Line("note", f"{_images(len(self.duplicates))} there twice ({shown}): remove the copies unless they are meant")
        crossed = [f"{name} and {first}" for name, first, differ in self.duplicates if differ]
        if crossed:
            yield Line("note", f"{len(crossed)} of them with different labels ({_names(crossed, 3)}): decide which is right")


def _images(n: int) -> str:
    return "1 image" if n == 1 else f"{n:,} images"


def _counts(counts: dict[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items(), key=lambda entry: -entry[1]))


def _names(names: Sequence[str], most: int = SHOWN) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
