"""The ADA pipe against golden numbers from an independent public implementation, and what must hold whatever the numbers."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from safetensors.torch import load_file

from data.augment import AUGMENTS, ADAOptions, build_augment
from data.augment.filters import SYM6, downsampling, filter_bank, upsampling
from data.augment.geometry import InverseMap, warp
from errors import UserError

ROOT = Path(__file__).parent.parent
EACH, FULL, GRAD = (load_file(Path(__file__).parent / "golden" / f"ada_{name}.safetensors")
                    for name in ("each_alone", "full_bgc_cutout", "seeded_and_grad"))  # fmt: skip
BLIT, GEOMETRY = ("xflip", "rotate90", "xint"), ("scale", "rotate", "aniso", "xfrac")
COLOR, CORRUPTION = ("brightness", "contrast", "lumaflip", "hue", "saturation"), ("imgfilter", "noise", "cutout")
TRANSFORMS = (*BLIT, *GEOMETRY, *COLOR, *CORRUPTION)
GROUPS = {"group_blit": BLIT, "group_geom": GEOMETRY, "group_color": COLOR, "grey_color": COLOR}
R3GAN = {"name": "ada", **dict.fromkeys(COLOR, 0.5), "cutout": 1.0}


def only(*names, channels=3, **options):
    """A pipe of the named transforms alone."""
    return build_augment({"name": "ada", **dict.fromkeys(TRANSFORMS, 0.0), **dict.fromkeys(names, 1.0), **options}, channels)


def everything(channels=3, **options):
    return only(*TRANSFORMS, channels=channels, **options)


class Draws:
    """Per-sample draws of a global batch, of which ``where`` is the slice at hand."""

    def __init__(self, n, where=slice(None), seed=0):
        self.n, self.where, self.seed, self.asked = n, where, seed, []

    def __call__(self, what, shape, kind, high=0):
        self.asked.append(what)
        rng = torch.Generator().manual_seed(sum(map(ord, what)) + 1000 * self.seed)
        if kind == "integer":
            return torch.randint(high, (self.n, *shape), generator=rng)[self.where]
        return {"uniform": torch.rand, "normal": torch.randn}[kind](self.n, *shape, generator=rng)[self.where]


def images(n=4, channels=3, height=8, width=8, dtype=torch.float32):
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(0), dtype=dtype) * 2 - 1


@pytest.mark.parametrize("case", [key[4:-8] for key in EACH if key.startswith("out.") and "pct" in key])
def test_golden_each_alone(case):
    x = EACH["in.grey" if case == "grey_color" else "in.images"]
    y = only(*GROUPS.get(case, (case,)), channels=x.shape[1])(x, None, 0.0, debug_percentile=0.75)
    resampled = case in (*BLIT, *GEOMETRY, "group_blit", "group_geom")
    torch.testing.assert_close(y, EACH[f"out.{case}.pct0.75"], rtol=0, atol=2e-5 if resampled else 2e-6)


@pytest.mark.parametrize("percentile", [0.1, 0.35, 0.5, 0.75, 0.9])
def test_golden_all_together(percentile):
    y = build_augment(R3GAN, 3)(FULL["in.images"], None, 0.0, debug_percentile=percentile)
    torch.testing.assert_close(y, FULL[f"out.full.pct{percentile}"], rtol=0, atol=5e-5)


def test_golden_gradient():
    x = GRAD["in.images"][:2].clone().requires_grad_()
    y = build_augment(R3GAN, 3)(x, None, 0.0, debug_percentile=0.35)
    torch.testing.assert_close(y, GRAD["out.grad_forward"], rtol=0, atol=5e-5)
    (gradient,) = torch.autograd.grad((y * GRAD["in.grad_weight"]).sum(), x)
    assert (gradient - GRAD["grad.images"]).abs().max() < 5e-5 * GRAD["grad.images"].abs().max()


def test_golden_filters():
    taps = torch.tensor(SYM6, dtype=torch.float64)
    torch.testing.assert_close((taps / taps.sum()).float(), FULL["out.Hz_geom"], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(filter_bank().float(), EACH["out.Hz_fbank"], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(filter_bank().sum(0), torch.eye(43, dtype=torch.float64)[21])  # together the identity


def test_resampling_loses_nothing():
    for size in (1, 2, 5, 8):
        kind = (size, torch.device("cpu"), torch.float64)
        middle = slice(2 * (size - 1 - 3), 2 * (2 * size - 1 + 3))  # the ring of three pixels around the image
        if size >= 4:
            up = upsampling(*kind)[middle]
            torch.testing.assert_close(downsampling(*kind) @ up, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-11)
        y = warp(images(2, 1, size, size + 1), InverseMap(2, torch.device("cpu"), torch.float32))
        assert y.shape == (2, 1, size, size + 1) and y.isfinite().all()
        if size >= 4:
            torch.testing.assert_close(y, images(2, 1, size, size + 1), rtol=0, atol=1e-5)


def test_directions():
    """A smooth blob right of the centre: where each map puts it."""
    x, y = torch.arange(32.0) - 15.5, (torch.arange(32.0) - 15.5)[:, None]

    def blob(cx, cy):
        return torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 18)[None, None]

    quarter = math.pi / 2
    for transform, values, at in (("rotate", (quarter,), (0, -6)), ("translate", (4, -3), (10, -3)), ("scale", (-1, 1), (-6, 0))):
        to_input = InverseMap(1, x.device, x.dtype)
        getattr(to_input, transform)(*(torch.tensor([float(v)]) for v in values))
        torch.testing.assert_close(warp(blob(6, 0), to_input), blob(*at), rtol=0, atol=0.02)


def test_beyond_the_mirror_images_is_black():
    """Zoomed out eight times, the image and its mirror images are 46 / 8 pixels wide."""
    to_input = InverseMap(1, torch.device("cpu"), torch.float32)
    to_input.scale(torch.tensor([0.125]), torch.tensor([0.125]))
    y = warp(torch.ones(1, 1, 16, 16), to_input)[0, 0]
    torch.testing.assert_close(y[7:9, 7:9], torch.ones(2, 2), rtol=0, atol=0.1)  # it rings
    assert y[:3].abs().max() < 0.05 and y[:, :3].abs().max() < 0.05


@pytest.mark.parametrize("channels", [1, 3])
def test_twice_differentiable(channels):
    pipe, x = everything(channels), images(2, channels, 4, 3, torch.float64).requires_grad_()

    def augment(x):
        return pipe(x, Draws(2), 0.9)

    assert augment(x).dtype == torch.float64 and (augment(x) - x).abs().amax((1, 2, 3)).min() > 0.1
    assert torch.autograd.gradcheck(augment, (x,)) and torch.autograd.gradgradcheck(augment, (x,))


def test_r1_reaches_the_weights_behind_the_pipe():
    """A penalty on the gradient with respect to the images before the pipe, differentiated by a parameter after it."""
    x, w = images().requires_grad_(), torch.randn(3, 8, 8, requires_grad=True)
    y = build_augment(R3GAN, 3)(x, Draws(4), 0.5)
    (gradient,) = torch.autograd.grad((y * w).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert w.grad.abs().min() > 0


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_does_not_depend_on_its_batch(channels):
    n, x = 12, images(12, channels, 16, 16)
    pipe = everything(channels, scale_std=1.0)  # some zoom far out: they look far beyond their borders
    whole = pipe(x, Draws(n), 0.7)
    for size in (1, 5):
        parts = [pipe(x[i : i + size], Draws(n, slice(i, i + size)), 0.7) for i in range(0, n, size)]
        assert (torch.cat(parts) - whole).abs().max() <= 1e-6 * whole.abs().max()
    others = x.clone()
    others[1:] = 1e3
    torch.testing.assert_close(pipe(others, Draws(n), 0.7)[0], whole[0], rtol=0, atol=1e-6)


def test_strength_zero_gives_the_very_images():
    x, draws = images(), Draws(4)
    assert everything()(x, draws, 0.0) is x and not draws.asked


def test_images_that_nothing_befell_are_bit_equal():
    x = images(512, 1, 4, 4)
    same = (build_augment(R3GAN, 1)(x, Draws(512), 0.1) == x).all(dim=(1, 2, 3)).float().mean().item()
    expected = 0.9**8 * 0.95**3
    assert abs(same - expected) < 4 * math.sqrt(expected * (1 - expected) / 512)


@pytest.mark.parametrize("multiplier", [1.0, 0.5])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_share_of_augmented_images(transform, multiplier):
    """Strength times multiplier, of which some flips and turns by chance change nothing."""
    n, strength = 800, 0.4
    x = images(n)
    pipe = only(**{transform: multiplier}, xint_max=0.25, imgfilter_bands=[0.0, 0.0, 1.0, 0.0])
    share = ((pipe(x, Draws(n), strength) - x).abs().amax((1, 2, 3)) > 1e-4).float().mean().item()
    acts = {"xflip": 1 / 2, "rotate90": 3 / 4, "xint": 15 / 16, "lumaflip": 1 / 2}.get(transform, 1.0)
    expected = strength * multiplier * acts
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_strength_beyond_one_saturates():
    pipe = everything(rotate=2.0)
    p = pipe.probabilities(1.5)
    assert p["rotate_before"] == p["rotate_after"] == 1 and p["xflip"] == 1.5
    assert pipe(images(), Draws(4), 1.5).isfinite().all()


def test_distributions():
    n, x = 4000, torch.full((4000, 3, 2, 2), 0.25)
    brightness = only("brightness")(x, Draws(n), 1.0)[:, 0, 0, 0] - 0.25
    assert abs(brightness.mean()) < 0.02 and abs(brightness.std() - 0.2) < 0.01
    contrast = (only("contrast")(x, Draws(n), 1.0)[:, 0, 0, 0] / 0.25).log2()
    assert abs(contrast.mean()) < 0.04 and abs(contrast.std() - 0.5) < 0.02
    noise = only("noise")(x, Draws(n), 1.0) - x
    assert abs(noise.mean()) < 0.01 and abs(noise.std() - 0.1) < 0.005
    cutout = only("cutout", channels=1)(torch.ones(n, 1, 16, 16), Draws(n), 1.0)
    assert abs(cutout.mean() - (1 - 0.4375**2)) < 0.01  # of a side of 1/2, 7/16 lie within the image on average


def test_colour_in_words():
    x = images(64)
    luma, chroma = (lambda t: t.mean(1)), (lambda t: (t - t.mean(1, keepdim=True)).norm(dim=1))
    for transform in ("hue", "saturation"):
        torch.testing.assert_close(luma(only(transform)(x, Draws(64), 1.0)), luma(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(chroma(only("hue")(x, Draws(64), 1.0)), chroma(x), rtol=0, atol=1e-5)
    flipped = only("lumaflip")(x, Draws(64), 1.0)
    torch.testing.assert_close(luma(flipped).abs(), luma(x).abs(), rtol=0, atol=1e-5)
    torch.testing.assert_close(chroma(flipped), chroma(x), rtol=0, atol=1e-5)


def test_gray():
    x = images(64, 1)
    for transform in ("hue", "saturation"):
        assert torch.equal(only(transform, channels=1)(x, Draws(64), 1.0), x)
    rgb = only("brightness", "contrast", "lumaflip")(x.expand(-1, 3, -1, -1), Draws(64), 1.0)
    gray = only(*COLOR, channels=1)(x, Draws(64), 1.0)
    torch.testing.assert_close(gray.expand(-1, 3, -1, -1), rgb, rtol=1e-5, atol=1e-5)


def test_dtypes_autocast_and_layout():
    x = images()
    y = everything()(x, Draws(4), 0.8)
    for dtype in (torch.bfloat16, torch.float16):
        low = everything()(x.to(dtype), Draws(4), 0.8)
        assert low.dtype == dtype
        torch.testing.assert_close(low, everything()(x.to(dtype).float(), Draws(4), 0.8).to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(everything()(x, Draws(4), 0.8), y)
    torch.testing.assert_close(everything()(x.to(memory_format=torch.channels_last), Draws(4), 0.8), y)
    with torch.inference_mode():  # what this caches must still serve a training step
        everything()(images(2, 3, 7, 9), Draws(2), 0.8)
    z = images(2, 3, 7, 9).requires_grad_()
    everything()(z, Draws(2), 0.8).sum().backward()


def test_channels_are_refused_by_number():
    for channels in (2, 4):
        with pytest.raises(UserError, match=f"found images of {channels} channels, allowed: 1 or 3"):
            build_augment({"name": "ada"}, channels)
    with pytest.raises(ValueError, match=r"images \(n, 3, h, w\) expected"):
        everything()(images(2, 1), Draws(2), 0.5)


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "augment").glob("*.yaml")), ids=lambda path: path.stem)
def test_configs(path):
    values = yaml.safe_load(path.read_text())
    schema = AUGMENTS[values["name"]]
    typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), {k: v for k, v in values.items() if k != "name"}))
    pipe = build_augment(values, 3)
    assert pipe is None if path.stem == "none" else pipe.options == typed
    if path.stem == "bgc":
        assert typed == ADAOptions()
    if path.stem == "ada":
        assert typed == ADAOptions(adaptive=True)
    if path.stem == "r3gan":
        assert typed == build_augment(R3GAN, 3).options


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "adaa"}, "augment.name=adaa is unknown; did you mean 'ada'?"),
        ({}, "augment.name=None is unknown; did you mean 'none'?"),
        ({"name": "ada", "xflp": 1.0}, "augment.xflp is not an option of augment=ada; did you mean 'xflip'?"),
        ({"name": "none", "xflip": 1.0}, "augment.xflip is not an option of augment=none; allowed: none"),
        ({"name": "ada", "hue": -1.0}, "augment=ada: hue=-1.0: a multiplier must be at least 0"),
        ({"name": "ada", "scale_std": -0.1}, "augment=ada: scale_std=-0.1: must be at least 0"),
        ({"name": "ada", "cutout_size": 1.5}, "augment=ada: cutout_size=1.5: must be at least 0, at most 1"),
        ({"name": "ada", "imgfilter_bands": [1.0]}, r"augment=ada: imgfilter_bands=\[1.0\]: four numbers"),
        ({"name": "ada", "interval": 0}, "augment=ada: interval=0: must be at least 1"),
        ({"name": "ada", "target": 1.0}, "augment=ada: target=1.0: a mean sign, must lie between -1 and 1"),
        ({"name": "ada", "adjust_kimg": 0.0}, "augment=ada: adjust_kimg=0.0: must be positive"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        build_augment(options, 3)


def test_noise_is_drawn_only_where_it_is_used():
    draws = Draws(4)
    build_augment(R3GAN, 3)(images(), draws, 0.5)
    assert draws.asked == ["apply", "uniform", "normal"]


def test_a_switch_changes_no_other_transform():
    x = images(64)
    a, b = only("brightness")(x, Draws(64), 0.5), only("brightness", "cutout", cutout_size=0.0)(x, Draws(64), 0.5)
    torch.testing.assert_close(a, b)
