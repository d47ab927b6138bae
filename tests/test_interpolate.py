"""sample.py interpolate=: paths between seeds, strips and animations."""

import pytest
import torch
import toys
from PIL import Image, ImageSequence
from toy_checkpoint import save_toy

from errors import UserError
from training import draw
from training.draws import latents
from training.interpolate import path_latents, slerp
from training.sampling import generate, load_gan


def test_slerp_turns_evenly_and_keeps_the_length():
    a, b = torch.eye(2)[:1] * 3, torch.eye(2)[1:] * 3
    for t in (0.0, 0.25, 1.0):
        found = slerp(a, b, torch.tensor([t]))
        angle = torch.tensor(t * torch.pi / 2)
        assert torch.allclose(found, 3 * torch.stack([angle.cos(), angle.sin()])[None], atol=1e-6)


def test_slerp_without_a_plane_is_a_straight_line():
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    b = torch.tensor([[2.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    found = slerp(a, b, torch.full((3,), 0.5))
    assert torch.allclose(found, torch.tensor([[1.5, 0.0], [0.0, 0.0], [0.5**0.5, 0.5**0.5]]), atol=1e-6)


def test_a_path_meets_its_seeds():
    z = path_latents([3, 5, 9], 4, row=2, z_dim=6, closed=False)
    assert z.shape == (9, 6)
    for at, seed in ((0, 3), (4, 5), (8, 9)):
        assert torch.allclose(z[at], latents(seed, 2, 1, 6)[0], atol=1e-5)
    closed = path_latents([3, 5, 9], 4, row=2, z_dim=6, closed=True)
    assert closed.shape == (12, 6) and torch.equal(closed[:8], z[:8])
    step = (closed - closed.roll(1, 0)).norm(dim=1)
    assert step[0] < 2 * step.median()  # it goes on where it began


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("run"), toys.values("r3gan"))


@pytest.fixture(scope="module")
def unconditional(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("run"), toys.values("lazy"))


def options(checkpoint, out, **more):
    return {"checkpoint": str(checkpoint), "out": str(out), "device": "cpu", **more}


def test_strip(checkpoint, tmp_path, capsys):
    out = tmp_path / "strip.png"
    assert draw.sample(options(checkpoint, out, interpolate="0,7", frames=3)) == 0
    assert "4 frames" in capsys.readouterr().out
    gan, spec = (loaded := load_gan(str(checkpoint), torch.device("cpu"))).gan, loaded.spec
    end = next(generate(gan, latents(7, 2, 1, gan.z_dim), torch.tensor([2]), torch.device("cpu")))
    picture = Image.open(out)
    assert picture.width > picture.height  # four columns, three classes
    from training.interpolate import interpolation

    images, titles = interpolation(gan, spec, [0, 7], 3, [], 10, False, torch.device("cpu"), 64)
    assert images.shape == (3, 4, 1, 8, 8) and titles == ["0", "1", "2"]
    assert torch.allclose(images[2, -1], end[0], atol=1e-4)


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_animation_goes_round(checkpoint, tmp_path, suffix):
    out = tmp_path / "deep" / f"walk.{suffix}"
    draw.sample(options(checkpoint, out, interpolate=[0, 1], frames=5, labels=[2, 0]))
    with Image.open(out) as animation:
        frames = [frame.convert("RGB").copy() for frame in ImageSequence.Iterator(animation)]
        assert animation.info.get("loop") == 0
    assert len(frames) == 10 and frames[0].tobytes() != frames[5].tobytes()
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_unconditional_models_have_one_row(unconditional, tmp_path):
    draw.sample(options(unconditional, tmp_path / "strip.png", interpolate="0,1"))
    assert Image.open(tmp_path / "strip.png").height < 100


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"interpolate": 3}, "interpolate=[3]: at least two seeds"),
        ({"interpolate": [0, -1]}, "interpolate=[0, -1]: at least two seeds"),
        ({"interpolate": "0,x"}, "interpolate=[0, 'x']: wrong type"),
        ({"frames": 4}, "frames=4: only with interpolate"),
        ({"interpolate": [0, 1], "n": 4}, "n=4: not with interpolate="),
        ({"interpolate": [0, 1], "frames": 0}, "frames=0: must be from 1"),
        ({"interpolate": [0, 1], "frames": 10**6}, "must be from 1 to 500"),
        ({"interpolate": [0, 1], "out": "walk.npz"}, "out=walk.npz: with interpolate= a name ending in"),
        ({"interpolate": [0, 1], "out": "walk"}, "out=walk: with interpolate= a name ending in"),
        ({"out": "walk.gif"}, "out=walk.gif: an animation needs interpolate"),
    ],
)
def test_refused(checkpoint, tmp_path, more, message):
    with pytest.raises(UserError) as error:
        draw.sample({**options(checkpoint, tmp_path / "x.png"), **more})
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())
