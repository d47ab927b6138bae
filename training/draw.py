"""What ``sample.py`` calls: pictures and sets of images from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from errors import UserError, nearest
from training.cli import check_writable
from training.config import MAX_GRID, typed
from training.draws import latents
from training.forms import form_of, writer
from training.interpolate import ANIMATIONS, interpolation, save_animation, save_strip
from training.processes import pick_device, use_tf32
from training.sampling import Loaded, class_titles, generate, grid_labels, load_gan, sample_labels

ROWS = 10  # classes in a grid when the user names none


@dataclass
class SampleScriptOptions:
    """Options of sample.py.

    checkpoint  a run folder (its checkpoints/latest.pt) or a checkpoint file.
    n           images; a grid of a conditional model rounds it up to whole rows. Default: 64; 2,000 for points of the plane.
    seed        image i is a function of (seed, i, its label) alone.
    labels      class numbers; default: all (a grid shows at most ten). A row a class, or in turn.
    out         picture.png: a grid, or points over real ones; a folder: n PNGs; set.npz: one array. Default: sample.png.
    interpolate seeds, at least two: what lies between them, instead of n samples of one seed; out=strip.png, or an animation
                that goes round, out=walk.gif or walk.webp. A row a class (at most ten).
    frames      images from one seed to the next. Default: 8 for a strip, 24 for an animation.
    weights     ema or raw.
    batch_size  images at once; does not change them.
    device      auto, cpu, cuda, cuda:<n>, mps.
    """

    checkpoint: str | None = None
    n: int | None = None
    seed: int = 0
    labels: list[int] = field(default_factory=list)
    out: str = "sample.png"
    interpolate: list[int] = field(default_factory=list)
    frames: int | None = None
    weights: str = "ema"
    batch_size: int = 64
    device: str = "auto"


def sample(values: dict[str, Any]) -> int:
    """Draw and write what ``values`` (see :class:`SampleScriptOptions`) ask for."""
    options = _checked(values)
    out = _checked_out(options)
    device = pick_device(options.device)
    use_tf32(False)  # the same picture for any batch size
    loaded = load_gan(options.checkpoint, device, options.weights)
    _check_labels(options, loaded)
    if out.suffix or not out.is_file():  # what is wrong with a file in place of a folder, its writer says at once
        check_writable("out", out, folder=not out.suffix)
    options.n = options.n or form_of(loaded.spec).default
    if options.interpolate:
        _walk(options, loaded, device, out)
    elif out.suffix == ".png":
        _grid(options, loaded, device, out)
    else:
        _images(options, loaded, device, out)
    return 0


def _checked(values: dict[str, Any]) -> SampleScriptOptions:
    for name in ("labels", "interpolate"):
        numbers = values.get(name)
        if isinstance(numbers, int) and not isinstance(numbers, bool):
            values = {**values, name: [numbers]}
        elif isinstance(numbers, str):
            values = {**values, name: [int(part) if part.strip().isdecimal() else part for part in numbers.split(",") if part]}
    options: SampleScriptOptions = typed(SampleScriptOptions, values, "")
    if options.checkpoint is None:
        raise UserError("checkpoint: not given; checkpoint=<a run folder or a checkpoint file> is needed")
    for name, low in (("n", 1), ("batch_size", 1), ("seed", 0)):
        if getattr(options, name) is not None and getattr(options, name) < low:
            raise UserError(f"{name}={getattr(options, name)}: must be at least {low}")
    _check_walk(options, values)
    if options.weights not in ("ema", "raw"):
        raise UserError(f"weights={options.weights}: unknown, {nearest(options.weights, ['ema', 'raw'])}")
    return options


def _check_walk(options: SampleScriptOptions, values: dict[str, Any]) -> None:
    if "interpolate" not in values:
        if options.frames is not None:
            raise UserError(f"frames={options.frames}: only with interpolate=<seeds>")
        return
    if len(options.interpolate) < 2 or min(options.interpolate) < 0:
        raise UserError(f"interpolate={options.interpolate}: at least two seeds from 0 on, for example interpolate=0,1,2")
    for name in ("n", "seed"):
        if name in values:
            raise UserError(f"{name}={values[name]}: not with interpolate=, whose seeds and frames= say which images")
    if options.frames is None:
        options.frames = 24 if Path(options.out).suffix in ANIMATIONS else 8
    images = options.frames * len(options.interpolate) * ROWS
    if options.frames < 1 or images > MAX_GRID:
        most = MAX_GRID // (len(options.interpolate) * ROWS)
        raise UserError(f"frames={options.frames}: must be from 1 to {most} with {len(options.interpolate)} seeds")


def _checked_out(options: SampleScriptOptions) -> Path:
    out = Path(options.out).expanduser()
    if options.interpolate and out.suffix not in (".png", *ANIMATIONS):
        raise UserError(f"out={options.out}: with interpolate= a name ending in .png (a strip), .gif or .webp is expected")
    if not options.interpolate and out.suffix in ANIMATIONS:
        raise UserError(f"out={options.out}: an animation needs interpolate=<seeds>, for example interpolate=0,1,2")
    if not options.interpolate and out.suffix not in ("", ".png", ".npz"):
        raise UserError(f"out={options.out}: a name ending in .png (a grid) or .npz, or a folder, is expected")
    try:
        taken = bool(out.suffix) and out.is_dir()
    except OSError as error:  # a name that is too long, for example
        raise UserError(f"out={options.out}: cannot write there ({error.strerror})") from None
    if taken:
        raise UserError(f"out={options.out}: a folder; give a name without {out.suffix}, or one that is free")
    if out.suffix == ".png" and (options.n or 0) > MAX_GRID:
        raise UserError(f"n={options.n}: a grid has at most {MAX_GRID} images; out=<folder> or out=set.npz takes any number")
    return out


def _check_labels(options: SampleScriptOptions, loaded: Loaded) -> None:
    if options.labels and not loaded.gan.conditional:
        raise UserError(f"labels={options.labels}: this model is not class-conditional; leave labels out")
    bad = [label for label in options.labels if not 0 <= label < loaded.spec.classes]
    if bad:
        raise UserError(f"labels={bad[0]}: outside 0 … {loaded.spec.classes - 1}, the classes of {loaded.spec.name}")


def _grid(options: SampleScriptOptions, loaded: Loaded, device: torch.device, out: Path) -> None:
    gan, spec = loaded.gan, loaded.spec
    if gan.conditional:
        classes = len(options.labels) or min(spec.classes, ROWS)
        columns = -(-options.n // classes)
        labels, chosen = grid_labels(spec.classes, classes, columns, options.labels)
        n, titles = len(labels), class_titles(spec, chosen)
    else:
        n, columns, labels, titles = options.n, max(1, round(options.n**0.5)), None, None
    z = latents(options.seed, 0, n, gan.z_dim)
    images = torch.cat(list(generate(gan, z, labels, device, options.batch_size)))
    try:
        form_of(spec).picture(out, images, spec, columns, titles)
    except OSError as error:
        raise UserError(f"out={out}: cannot write there ({error.strerror})") from None
    print(f"{n} {form_of(spec).what} at {loaded.clock.kimg:g} kimg ({options.weights} weights, seed {options.seed}): {out}")


def _walk(options: SampleScriptOptions, loaded: Loaded, device: torch.device, out: Path) -> None:
    form = form_of(loaded.spec)
    if not form.walks:
        raise UserError(f"interpolate={options.interpolate}: a walk is shown in images, and this model makes {form.what} "
                        f"(dataset={loaded.spec.name}); leave it out")  # fmt: skip
    closed = out.suffix in ANIMATIONS
    images, titles = interpolation(
        loaded.gan, loaded.spec, options.interpolate, options.frames, options.labels, ROWS, closed, device, options.batch_size
    )  # fmt: skip
    try:
        save_animation(out, images) if closed else save_strip(out, images, titles)
    except OSError as error:
        raise UserError(f"out={out}: cannot write there ({error.strerror})") from None
    seeds = ", ".join(map(str, options.interpolate))
    print(f"{images.shape[1]} frames at {loaded.clock.kimg:g} kimg ({options.weights} weights, seeds {seeds}): {out}")


def _images(options: SampleScriptOptions, loaded: Loaded, device: torch.device, out: Path) -> None:
    gan, what = loaded.gan, form_of(loaded.spec).what
    try:
        file = writer(loaded.spec, out, options.out)
        with file, tqdm(total=options.n, unit=what, disable=None) as bar:
            for first in range(0, options.n, options.batch_size):
                n = min(options.batch_size, options.n - first)
                labels = sample_labels(loaded.spec.classes, first, n, options.labels) if gan.conditional else None
                z = latents(options.seed, first, n, gan.z_dim)
                file.write(torch.cat(list(generate(gan, z, labels, device, options.batch_size))), labels)
                bar.update(n)
    except OSError as error:
        raise UserError(f"out={out}: cannot write there ({error.strerror})") from None
    print(f"{options.n} {what} at {loaded.clock.kimg:g} kimg ({options.weights} weights, seed {options.seed}): {out}")
