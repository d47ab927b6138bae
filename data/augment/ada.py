"""The augmentations of adaptive discriminator augmentation, ADA (arXiv:2006.06676, appendix B)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from data.augment.adaptive import AdaptiveStrength
from data.augment.filters import band_filters
from data.augment.geometry import InverseMap, warp
from errors import UserError

Draw = Callable[..., Tensor]
"""draw(what, shape, kind, high=0) -> (n, *shape): ``Batch.draw`` of gans/base.py, with ``what`` made unique by the caller."""

BLIT, GEOMETRY = ("xflip", "rotate90", "xint"), ("scale", "rotate", "aniso", "xfrac")
COLOR, CORRUPTION = ("brightness", "contrast", "lumaflip", "hue", "saturation"), ("imgfilter", "noise", "cutout")
BANDS = ("band0", "band1", "band2", "band3")
# Columns of the three draws. An option changes no draw of another transform, so append here, never insert.
GATES = (*BLIT, "scale", "rotate_before", "aniso", "rotate_after", "xfrac", *COLOR, *BANDS, "noise", "cutout")
UNIFORM = ("xflip", "rotate90", "xint_x", "xint_y", "rotate_before", "rotate_after", "lumaflip", "hue", "cutout_x", "cutout_y")
NORMAL = ("scale", "aniso", "xfrac_x", "xfrac_y", "brightness", "contrast", "saturation", *BANDS, "noise")


@dataclass(frozen=True)
class ADAOptions:
    """Options of ``augment=ada``. Defaults: the paper's best set, "bgc" (pixel blitting, geometry, colour).

    A transform is drawn for an image with probability strength * multiplier, independently of the others; then half of the
    x-flips and luma flips and a quarter of the 90 degree rotations are none, being drawn from all possible ones. The strength
    is the driver's ``augment_strength``: constant, scheduled, or only the start where ``adaptive``.

    xflip … cutout   multipliers, 0 for never.
    imgfilter_bands  further multipliers of the four frequency bands, lowest first.
    *_std            standard deviations: of log2 of a factor (scale, aniso, contrast, saturation, imgfilter), in image sizes
                     (xfrac), in image values where black and white are 2 apart (brightness, noise).
    *_max            largest turn in half circles (rotate, hue), largest shift in image sizes (xint).
    cutout_size      side of the blackened rectangle in image sizes.
    adaptive         the strength follows overfitting (see :class:`AdaptiveStrength` for target, interval, adjust_kimg).
    """

    xflip: float = 1.0
    rotate90: float = 1.0
    xint: float = 1.0
    scale: float = 1.0
    rotate: float = 1.0
    aniso: float = 1.0
    xfrac: float = 1.0
    brightness: float = 1.0
    contrast: float = 1.0
    lumaflip: float = 1.0
    hue: float = 1.0
    saturation: float = 1.0
    imgfilter: float = 0.0
    imgfilter_bands: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0, 1.0])
    noise: float = 0.0
    cutout: float = 0.0

    xint_max: float = 0.125
    scale_std: float = 0.2
    rotate_max: float = 1.0
    aniso_std: float = 0.2
    xfrac_std: float = 0.125
    brightness_std: float = 0.2
    contrast_std: float = 0.5
    hue_max: float = 1.0
    saturation_std: float = 1.0
    imgfilter_std: float = 1.0
    noise_std: float = 0.1
    cutout_size: float = 0.5

    adaptive: bool = False
    target: float = 0.6
    interval: int = 4
    adjust_kimg: float = 500.0

    def __post_init__(self) -> None:
        for name in (*BLIT, *GEOMETRY, *COLOR, *CORRUPTION):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: a multiplier must be at least 0")
        for name in (n for n in vars(self) if n.endswith(("_std", "_max", "_size"))):
            high = 1.0 if name in ("xint_max", "cutout_size") else math.inf
            if not 0 <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0" + (", at most 1" if high == 1 else ""))
        if len(self.imgfilter_bands) != len(BANDS) or min(self.imgfilter_bands) < 0:
            raise ValueError(f"imgfilter_bands={list(self.imgfilter_bands)}: four numbers of at least 0 are expected")
        AdaptiveStrength(0.0, self.target, self.interval, self.adjust_kimg)  # refuses what it cannot use

    def build(self, channels: int) -> AugmentPipe:
        """The pipe for images of ``channels`` channels; UserError unless 1 or 3."""
        return AugmentPipe(self, channels)


class _Dice:
    """Which of n images each transform befalls, and with which parameters; ``touched`` (n,) are those that any befell."""

    def __init__(self, draw: Draw, probabilities: dict[str, float], percentile: float | None, like: Tensor):
        self.probabilities, self.percentile = probabilities, percentile
        self.n, self.kind = len(like), {"device": like.device, "dtype": like.dtype}
        self.touched = torch.zeros(self.n, dtype=torch.bool, device=like.device)
        if percentile is None:
            self._gates = draw("apply", (len(GATES),), "uniform")
            self._uniform = draw("uniform", (len(UNIFORM),), "uniform").to(**self.kind)
            self._normal = draw("normal", (len(NORMAL),), "normal").to(**self.kind)

    def uniform(self, name: str) -> Tensor:
        """(n,) in [0, 1)."""
        return self._fixed(self.percentile) if self.percentile is not None else self._uniform[:, UNIFORM.index(name)]

    def normal(self, name: str) -> Tensor:
        """(n,) standard normal. A percentile stands for erfinv(2 percentile - 1), the convention of the public golden numbers."""
        if self.percentile is None:
            return self._normal[:, NORMAL.index(name)]
        return self._fixed(2 * self.percentile - 1).erfinv()

    def gate(self, name: str) -> Tensor:
        """(n,) bool: the images that the transform ``name`` befalls."""
        probability = self.probabilities[name]
        if self.percentile is None:
            chosen = self._gates[:, GATES.index(name)] < probability
        else:
            chosen = torch.full((self.n,), probability > 0, device=self.kind["device"])
        self.touched = self.touched | chosen
        return chosen

    def either(self, name: str, value: Tensor, neutral: float) -> Tensor:
        """(n,): ``value`` for the images that the transform befalls, else ``neutral``."""
        return torch.where(self.gate(name), value, neutral)

    def _fixed(self, value: float) -> Tensor:
        return torch.full((self.n,), value, **self.kind)


class AugmentPipe:
    """images (n, c, h, w) in [-1, 1] -> images of the same shape and dtype, each augmented by itself.

    Differentiable twice with respect to the images. Computes in at least fp32, outside autocast. What happens to an image
    depends on its own draws and the strength alone, never on the rest of the batch.
    """

    uses_strength: ClassVar[bool] = True

    def __init__(self, options: ADAOptions, channels: int):
        if channels not in (1, 3):
            raise UserError(f"augment=ada: found images of {channels} channels, allowed: 1 or 3")
        self.options, self.channels = options, channels

    def __call__(self, images: Tensor, draw: Draw, strength: float, debug_percentile: float | None = None) -> Tensor:
        """Augment with probability ``strength`` (0 gives back the very images) times each transform's multiplier.

        draw              (what, shape, kind) -> per-sample random numbers; see ``Draw``.
        debug_percentile  for tests: every transform with a multiplier > 0 is applied with this quantile of its parameters,
                          whatever the strength.
        """
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise ValueError(f"images (n, {self.channels}, h, w) expected, found {tuple(images.shape)}")
        if strength <= 0 and debug_percentile is None:
            return images
        with torch.autocast(images.device.type, enabled=False):
            x = images.to(torch.promote_types(images.dtype, torch.float32))
            dice = _Dice(draw, self.probabilities(strength, debug_percentile is not None), debug_percentile, x)
            y = self._corrupt(self._filter(self._color(self._move(x, dice), dice), dice), dice, draw)
            # resampling would give the others back too, but only up to rounding
            return torch.where(dice.touched[:, None, None, None], y, x).to(images.dtype)

    def probabilities(self, strength: float, debug: bool = False) -> dict[str, float]:
        """The probability of every gate at this strength; two rotations share one such that either happens with it."""
        o, strength = self.options, 1.0 if debug else strength
        multipliers = {name: getattr(o, name) for name in (*BLIT, *GEOMETRY, *COLOR, "noise", "cutout") if name != "rotate"}
        multipliers |= {band: o.imgfilter * multiplier for band, multiplier in zip(BANDS, o.imgfilter_bands)}
        rotate = 1 - math.sqrt(1 - min(o.rotate * strength, 1.0))
        probabilities = {name: multiplier * strength for name, multiplier in multipliers.items()}
        return {**probabilities, "rotate_before": rotate, "rotate_after": 0.0 if debug else rotate}

    def _move(self, images: Tensor, dice: _Dice) -> Tensor:
        """Pixel blitting and general geometry, as one map."""
        o = self.options
        if not any(getattr(o, name) for name in (*BLIT, *GEOMETRY)):
            return images
        height, width = images.shape[2:]
        to_input = InverseMap(len(images), images.device, images.dtype)
        flip = dice.either("xflip", (2 * dice.uniform("xflip")).floor(), 0)
        to_input.scale(1 - 2 * flip, torch.ones_like(flip))
        to_input.rotate(math.pi / 2 * dice.either("rotate90", (4 * dice.uniform("rotate90")).floor(), 0))
        chosen = dice.gate("xint")
        x, y = (torch.where(chosen, o.xint_max * (2 * dice.uniform(f"xint_{axis}") - 1), 0) for axis in "xy")
        to_input.translate((x * width).round(), (y * height).round())

        scale = dice.either("scale", (o.scale_std * dice.normal("scale")).exp2(), 1)
        to_input.scale(scale, scale)
        turn = math.pi * o.rotate_max
        to_input.rotate(dice.either("rotate_before", turn * (2 * dice.uniform("rotate_before") - 1), 0))
        stretch = dice.either("aniso", (o.aniso_std * dice.normal("aniso")).exp2(), 1)
        to_input.scale(stretch, 1 / stretch)
        to_input.rotate(dice.either("rotate_after", turn * (2 * dice.uniform("rotate_after") - 1), 0))
        chosen = dice.gate("xfrac")
        x, y = (torch.where(chosen, o.xfrac_std * dice.normal(f"xfrac_{axis}"), 0) for axis in "xy")
        to_input.translate(x * width, y * height)
        return warp(images, to_input)

    def _color(self, images: Tensor, dice: _Dice) -> Tensor:
        """All colour transforms as one affine map of the RGB cube.

        Split a colour into luma, its part along (1, 1, 1), and chroma, the rest. Brightness adds to luma, contrast scales both,
        the luma flip mirrors luma, hue turns chroma and saturation scales it.
        """
        o = self.options
        if not any(getattr(o, name) for name in COLOR):
            return images
        brightness = dice.either("brightness", o.brightness_std * dice.normal("brightness"), 0)
        contrast = dice.either("contrast", (o.contrast_std * dice.normal("contrast")).exp2(), 1)
        sign = 1 - 2 * dice.either("lumaflip", (2 * dice.uniform("lumaflip")).floor(), 0)
        luma_gain = (sign * contrast)[:, None, None, None]
        brightness = brightness[:, None, None, None]
        if self.channels == 1:  # gray has neither hue nor saturation
            return luma_gain * (images + brightness)
        hue = dice.either("hue", math.pi * o.hue_max * (2 * dice.uniform("hue") - 1), 0)[:, None, None, None]
        saturation = dice.either("saturation", (o.saturation_std * dice.normal("saturation")).exp2(), 1)
        luma = images.mean(dim=1, keepdim=True)
        chroma = images - luma
        quarter_turn = (chroma.roll(1, dims=1) - chroma.roll(-1, dims=1)) / math.sqrt(3)  # (1, 1, 1) / sqrt(3) x chroma
        chroma_gain = (contrast * saturation)[:, None, None, None]
        return luma_gain * (luma + brightness) + chroma_gain * (hue.cos() * chroma + hue.sin() * quarter_turn)

    def _filter(self, images: Tensor, dice: _Dice) -> Tensor:
        """Amplify or damp four frequency bands, in turn, each at constant power of an image with a 1/f spectrum."""
        o = self.options
        if not o.imgfilter * max(o.imgfilter_bands):
            return images
        power = torch.tensor([10, 1, 1, 1], **dice.kind) / 13
        gains = torch.ones(len(images), len(BANDS), **dice.kind)
        for i, band in enumerate(BANDS):
            gain = dice.either(band, (o.imgfilter_std * dice.normal(band)).exp2(), 1)[:, None]
            total = 1 - power[i] + power[i] * gain.square()
            gains = gains * torch.where(torch.arange(len(BANDS), device=gain.device) == i, gain, 1) / total.sqrt()
        rows, columns = (
            torch.einsum("nb,bij->nij", gains, band_filters(size, images.device, images.dtype))[:, None]
            for size in images.shape[2:]
        )
        return rows @ images @ columns.mT

    def _corrupt(self, images: Tensor, dice: _Dice, draw: Draw) -> Tensor:
        """Additive noise, then a rectangle of zeros."""
        o = self.options
        if o.noise:
            sigma = dice.either("noise", o.noise_std * dice.normal("noise").abs(), 0)[:, None, None, None]
            images = images + sigma * draw("noise", tuple(images.shape[1:]), "normal").to(**dice.kind)
        if o.cutout:
            inside = dice.gate("cutout")[:, None, None, None]
            for axis, size in (("x", images.shape[3]), ("y", images.shape[2])):
                center = dice.uniform(f"cutout_{axis}")[:, None]
                near = ((torch.arange(size, **dice.kind) + 0.5) / size - center).abs() < o.cutout_size / 2
                inside = inside & (near[:, None, None] if axis == "x" else near[:, None, :, None])
            images = images.masked_fill(inside, 0)
        return images
