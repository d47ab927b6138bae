import json

import numpy as np
import pytest
import torch
from PIL import Image

from errors import UserError
from training.pictures import ImageFolderWriter, NpzWriter, grid, save_grid, to_uint8

WHITE = (255, 255, 255)


def noise(n, channels, height, width, seed=0):
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def levels(n, height, width, channels, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, channels), dtype=np.uint8)


def files(folder):
    return sorted(p.name for p in folder.iterdir())


# to_uint8


def test_every_level_comes_back():
    all_levels = torch.arange(256, dtype=torch.float32)
    images = (all_levels / 127.5 - 1).reshape(1, 1, 16, 16)
    assert (to_uint8(images).reshape(-1) == all_levels.numpy()).all()


def test_rounding_clamping_and_what_is_not_finite():
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([-1.0, 1.0, -7.0, 7.0, 0.5 / 127.5 - 1 - 1e-3, 0.6 / 127.5 - 1, nan, inf, -inf])
    assert to_uint8(values.reshape(1, 1, 1, -1)).reshape(-1).tolist() == [0, 255, 0, 255, 0, 1, 128, 128, 128]


def test_layout_and_types():
    images = noise(2, 3, 4, 5)
    out = to_uint8(images.clone().requires_grad_())
    assert out.shape == (2, 4, 5, 3) and out.dtype == np.uint8
    assert out[1, 2, 3, 0] == round(float(images[1, 0, 2, 3]) * 127.5 + 127.5)
    half = images.bfloat16()
    assert (to_uint8(half) == to_uint8(half.float())).all()
    with pytest.raises(ValueError, match="channels, height, width"):
        to_uint8(images[0])


# grids


def test_tiles_sit_row_after_row_in_the_right_place():
    tiles = levels(5, 300, 200, 3)  # wide enough: not enlarged
    picture = np.asarray(grid(tiles, 3))
    assert picture.shape == (2 * 300 + 4 + 16, 3 * 200 + 2 * 4 + 16, 3)
    for number in range(5):
        row, column = divmod(number, 3)
        y, x = 8 + row * 304, 8 + column * 204
        assert (picture[y : y + 300, x : x + 200] == tiles[number]).all()
    assert (picture[8 + 304 :, 8 + 2 * 204 :] == 255).all()  # the place of the missing sixth
    assert (picture[:8] == 255).all() and (picture[:, 208:212] == 255).all()


def test_small_images_grow_by_a_whole_factor_without_blur():
    tiles = levels(4, 28, 28, 1)
    picture = np.asarray(grid(tiles, 4, min_width=512))
    scale = 5  # 4 * 28 * 5 + 3 * 4 + 16 >= 512 > 4 * 28 * 4 + 3 * 2 + 16
    assert picture.shape[1] == 4 * 28 * scale + 3 * 4 + 16
    tile = picture[8 : 8 + 140, 8 : 8 + 140]
    assert (tile == tiles[0].repeat(scale, 0).repeat(scale, 1)).all()
    assert grid(tiles[:2], 9, min_width=1).width == 2 * 28 + 2 + 16  # no room for columns that no image fills
    assert grid(tiles, 4, min_width=1).width == 4 * 28 + 3 * 2 + 16


@pytest.mark.parametrize("n, columns", [(1, 1), (1, 8), (7, 3), (64, 8), (3, 100)])
@pytest.mark.parametrize("size", [(1, 1), (28, 28), (128, 256)])
def test_any_picture_is_wide_enough(n, columns, size):
    picture = grid(noise(n, 3, *size), columns, min_width=300)
    assert picture.width >= 300 and picture.mode == "RGB"


def test_float_and_uint8_give_the_same_picture():
    images = noise(6, 3, 16, 16)
    assert grid(images, 3).tobytes() == grid(to_uint8(images), 3).tobytes()


def test_titles_and_caption_leave_the_tiles_alone():
    tiles = levels(6, 64, 64, 3)
    bare = np.asarray(grid(tiles, 3))
    titled = grid(tiles, 3, row_titles=["cat", "dog"], column_titles=["a", "b", "c"], caption="kimg 20, seed 0")
    body = bare[8:-8, 8:-8]
    pixels = np.asarray(titled)
    left, top = titled.width - 8 - body.shape[1], next(
        y for y in range(titled.height) if (pixels[y : y + 1, -8 - body.shape[1] : -8] == body[0]).all()
    )  # fmt: skip
    assert (pixels[top : top + body.shape[0], left:-8] == body).all()
    for region in (pixels[top:, :left], pixels[:top, left:], pixels[top + body.shape[0] :]):
        assert region.min() < 128  # there is ink
        assert (region == 255).all(-1).mean() > 0.5  # on white
    assert titled.getpixel((0, 0)) == titled.getpixel((titled.width - 1, titled.height - 1)) == WHITE


def test_row_titles_stand_at_their_rows():
    pixels = np.asarray(grid(levels(3, 200, 600, 3), 1, row_titles=["one", "", "three"]))
    left = pixels[:, : pixels.shape[1] - 608]
    rows = [left[8 + row * 204 : 208 + row * 204] for row in range(3)]
    assert [bool(row.min() < 128) for row in rows] == [True, False, True]
    ink = np.flatnonzero(rows[0].min(axis=(1, 2)) < 128)
    assert abs(ink.mean() - 100) < 5  # centred


@pytest.mark.parametrize("text", ["word " * 300, "x" * 3000, "", "\n\n", "Größe → ±1 · 猫", "a\nb"])
def test_no_text_breaks_the_layout(text):
    tiles = levels(4, 8, 8, 3)
    picture = grid(tiles, 2, row_titles=[text, "b"], column_titles=["a", text], caption=text, min_width=200)
    assert picture.width < 200 + 300 and picture.height < 1000


def test_letters_beyond_ascii_are_drawn():
    tiles = levels(1, 600, 600, 3)
    first, second = (grid(tiles, 1, row_titles=[title]) for title in ("→", "≥"))
    assert first.size != second.size or first.tobytes() != second.tobytes()  # not both the box of a missing glyph


def test_wrong_arguments():
    tiles = levels(4, 8, 8, 3)
    with pytest.raises(ValueError, match="row_titles must have 2 entries"):
        grid(tiles, 2, row_titles=["a"])
    with pytest.raises(ValueError, match="column_titles must have 2 entries"):
        grid(tiles, 2, column_titles=["a", "b", "c"])
    with pytest.raises(ValueError, match="at least one image"):
        grid(tiles[:0], 2)
    with pytest.raises(ValueError, match="1 or 3"):
        grid(levels(1, 8, 8, 4), 1)


def test_save_grid_leaves_one_whole_file(tmp_path):
    images = noise(4, 3, 16, 16)
    path = tmp_path / "samples" / "kimg00020.512.png"
    assert save_grid(path, images, 2, row_titles=["a", "b"], caption="c") == path
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.tobytes() == grid(images, 2, row_titles=["a", "b"], caption="c").tobytes()
    assert files(path.parent) == [path.name]


def test_a_failed_save_keeps_the_old_picture(tmp_path, monkeypatch):
    path = save_grid(tmp_path / "a.png", noise(1, 3, 8, 8), 1)
    old = path.read_bytes()

    def full_disk(self, name, **_):
        open(name, "wb").write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_grid(path, noise(1, 3, 8, 8, seed=1), 1)
    assert path.read_bytes() == old


# folders


@pytest.mark.parametrize("channels, mode", [(1, "L"), (3, "RGB")])
def test_folder_holds_every_image_under_its_number(tmp_path, channels, mode):
    images = levels(7, 6, 5, channels)
    with ImageFolderWriter(tmp_path / "out") as writer:
        writer.write(images[:4])
        writer.write(images[4:])
    assert files(tmp_path / "out") == [f"img{i:08d}.png" for i in range(7)]
    for i in range(7):
        with Image.open(tmp_path / "out" / f"img{i:08d}.png") as image:
            assert image.mode == mode
            assert (np.asarray(image).reshape(6, 5, channels) == images[i]).all()


def test_folder_keeps_labels_and_can_go_on(tmp_path):
    images = levels(5, 4, 4, 3)
    with ImageFolderWriter(tmp_path) as writer:
        writer.write(images[:2], [7, 1])
        writer.write(images[2:3], torch.tensor([3]))
    with ImageFolderWriter(tmp_path, start=3) as writer:
        writer.write(images[3:], np.array([0, 9]))
    names = [f"img{i:08d}.png" for i in range(5)]
    assert json.loads((tmp_path / "dataset.json").read_text()) == {
        "labels": [list(pair) for pair in zip(names, [7, 1, 3, 0, 9], strict=True)]
    }
    assert files(tmp_path) == ["dataset.json", *names]


def test_folder_with_left_over_images_is_refused(tmp_path):
    with ImageFolderWriter(tmp_path) as writer:
        writer.write(levels(3, 4, 4, 3))
    with pytest.raises(UserError, match="already holds 3 images"):
        ImageFolderWriter(tmp_path)
    with pytest.raises(UserError, match="already holds 1 images"):
        ImageFolderWriter(tmp_path, start=2)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        ImageFolderWriter(tmp_path / "file")


# archives


def test_npz_is_what_numpy_would_write(tmp_path):
    images, labels = levels(9, 6, 5, 3), [1, 2, 3, 4, 5, 6, 7, 8, 0]
    path = tmp_path / "out" / "samples.npz"
    with NpzWriter(path) as writer:
        writer.write(images[:4], labels[:4])
        assert not path.exists()
        writer.write(torch.from_numpy(images[4:]).permute(0, 3, 1, 2) / 127.5 - 1, torch.tensor(labels[4:]))
    with np.load(path, allow_pickle=False) as data:
        assert sorted(data.files) == ["arr_0", "arr_1"]
        assert data["arr_0"].dtype == np.uint8 and (data["arr_0"] == images).all()
        assert data["arr_1"].dtype == np.int64 and data["arr_1"].tolist() == labels
    assert files(path.parent) == ["samples.npz"]


def test_npz_of_gray_images_is_rgb_and_without_labels_has_one_array(tmp_path):
    images = levels(3, 6, 5, 1)
    with NpzWriter(tmp_path / "a.npz") as writer:
        writer.write(images)
    with np.load(tmp_path / "a.npz") as data:
        assert data.files == ["arr_0"]
        assert data["arr_0"].shape == (3, 6, 5, 3)
        assert all((data["arr_0"][..., c] == images[..., 0]).all() for c in range(3))


def test_npz_unfinished_leaves_nothing_new(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        with NpzWriter(path) as writer:
            writer.write(levels(2, 4, 4, 3))
            raise RuntimeError
    assert files(tmp_path) == ["a.npz"] and path.read_bytes() == b"old"


def test_npz_of_nothing_and_wrong_names(tmp_path):
    writer = NpzWriter(tmp_path / "a.npz")
    writer.close()
    writer.close()
    assert np.load(tmp_path / "a.npz")["arr_0"].shape == (0, 0, 0, 3)
    with pytest.raises(UserError, match="must end in .npz"):
        NpzWriter(tmp_path / "a.zip")


@pytest.mark.parametrize("make", [lambda p: ImageFolderWriter(p / "f"), lambda p: NpzWriter(p / "a.npz")])
def test_writers_refuse_batches_that_do_not_match(tmp_path, make):
    writer = make(tmp_path)
    writer.write(levels(2, 4, 4, 3), [0, 1])
    with pytest.raises(ValueError, match="shape of the first"):
        writer.write(levels(2, 4, 5, 3), [0, 1])
    with pytest.raises(ValueError, match="2 images came with 1 labels"):
        writer.write(levels(2, 4, 4, 3), [0])
    with pytest.raises(ValueError, match="either every batch"):
        writer.write(levels(2, 4, 4, 3))
    with pytest.raises(ValueError, match="uint8"):
        writer.write(levels(2, 4, 4, 3).astype(np.float32))
    writer.discard()
