"""StyleGAN/EDM zips: image modes, sizes, labels, and every way in which such a file can be wrong."""

import io
import json
import re
import struct
import threading
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import data
from data import DatasetOptions
from data.decode import CHUNK, check_memory, decode, in_threads, resize_square
from errors import UserError


def pixels(seed=0, height=6, width=6, channels=3):
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def make_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content if isinstance(content, (bytes, str)) else encoded(content))
    return str(path)


def images_and(labels, count=4, prefix=""):
    members = {f"{prefix}00000/img{k:08d}.png": pixels(k) for k in range(count)}
    if labels is not None:
        members[f"{prefix}dataset.json"] = labels if isinstance(labels, str) else json.dumps({"labels": labels})
    return members


def names(count=4):
    return [f"00000/img{k:08d}.png" for k in range(count)]


def load(path, **options):
    return data.build(DatasetOptions("zip", path=path, **options))


def refused(path, **options):
    with pytest.raises(UserError) as error:
        load(path, **options)
    assert "\n" not in str(error.value) and f"dataset.path={path}" in str(error.value)
    return str(error.value)


def test_images_come_in_the_order_of_their_names_with_their_labels(tmp_path):
    members = dict(reversed(images_and([[name, label] for name, label in zip(names(), [2, 0, 1, 2], strict=True)]).items()))
    source = load(make_zip(tmp_path / "a.zip", members))
    assert source.spec == data.Spec("zip", 6, 3, 3)
    assert source.labels.tolist() == [2, 0, 1, 2]
    for k in range(4):
        assert np.array_equal(source.images[k].permute(1, 2, 0).numpy(), pixels(k))


@pytest.mark.parametrize("labels", [None, '{"labels": null}', "{}"], ids=["no file", "null", "no key"])
def test_unlabelled(tmp_path, labels):
    path = make_zip(tmp_path / "a.zip", images_and(labels))
    source = load(path)
    assert source.spec.classes == 0 and source.labels.tolist() == [-1] * 4
    with pytest.raises(UserError, match="dataset=zip has no labels and this model needs them"):
        data.build(DatasetOptions("zip", path=path), need_labels=True)


def test_labels_of_a_zipped_folder_and_with_backslashes(tmp_path):
    labels = [[name.replace("/", "\\"), k] for k, name in enumerate(names())]
    source = load(make_zip(tmp_path / "a.zip", images_and(labels, prefix="flowers/")))
    assert source.labels.tolist() == [0, 1, 2, 3]


def test_labels_as_a_mapping(tmp_path):
    assert load(make_zip(tmp_path / "a.zip", images_and(dict.fromkeys(names(), 1)))).spec.classes == 2


def test_other_files_are_ignored(tmp_path):
    members = images_and(None, count=1) | {"README.txt": "hello", "__MACOSX/00000/._img.png": "junk", ".thumb.png": "junk"}
    assert len(load(make_zip(tmp_path / "a.zip", members))) == 1


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_number_of_workers_gives_the_same_data(tmp_path, workers):
    count = 2 * CHUNK + 5
    path = make_zip(tmp_path / "a.zip", {f"{k:05d}.png": pixels(k, 4, 4) for k in range(count)})
    source = load(path, workers=workers)
    assert torch.equal(source.images, torch.from_numpy(np.stack([pixels(k, 4, 4) for k in range(count)])).permute(0, 3, 1, 2))


def test_workers_are_the_threads_that_decode():
    used = set()
    meet = threading.Barrier(3, timeout=10)

    def work(item):
        meet.wait()  # passes only if three threads are at work at once
        used.add(threading.get_ident())
        return item

    assert list(in_threads(work, range(3), workers=3)) == [0, 1, 2]
    assert len(used) == 3
    used.clear()
    list(in_threads(lambda item: used.add(threading.get_ident()), range(3), workers=0))
    assert used == {threading.get_ident()}


def test_gray_images_stay_gray(tmp_path):
    source = load(make_zip(tmp_path / "a.zip", {f"{k}.png": pixels(k, channels=1) for k in range(5)}))
    assert source.images.shape == (5, 1, 6, 6) and source.spec.channels == 1
    assert np.array_equal(source.images[3, 0].numpy(), pixels(3, channels=1))


def test_mixed_modes_become_rgb(tmp_path):
    gray, rgb = pixels(1, channels=1), pixels(2)
    palette = Image.fromarray(np.arange(36, dtype=np.uint8).reshape(6, 6) % 4).convert("P")
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7] + [0] * 756)
    clear = np.dstack([rgb, np.zeros((6, 6), np.uint8)])
    members = {"a.png": gray, "b.png": rgb, "c.png": encoded(palette), "d.png": np.dstack([rgb, np.full((6, 6), 255, np.uint8)])}
    source = load(make_zip(tmp_path / "a.zip", members | {"e.png": clear}))
    assert source.images.shape == (5, 3, 6, 6)
    assert all(np.array_equal(source.images[0, c].numpy(), gray) for c in range(3))
    assert np.array_equal(source.images[1].permute(1, 2, 0).numpy(), rgb)
    assert source.images[2, :, 0, :4].T.tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 8, 7]]
    assert torch.equal(source.images[3], source.images[1])
    assert source.images[4].unique().tolist() == [255]  # transparent pixels show white


@pytest.mark.parametrize(
    "image, kind, options, expected",
    [
        (Image.new("1", (2, 2), 1), "PNG", {}, 255),
        (Image.new("LA", (2, 2), (40, 255)), "PNG", {}, 40),
        (Image.new("LA", (2, 2), (40, 0)), "PNG", {}, 255),
        (Image.new("L", (2, 2), 40), "PNG", {"transparency": 40}, 255),
        (Image.new("L", (2, 2), 40), "PNG", {"transparency": 41}, 40),
        (Image.new("RGB", (2, 2), (1, 2, 3)), "PNG", {"transparency": (1, 2, 3)}, (255, 255, 255)),
        (Image.new("P", (2, 2), 0), "GIF", {"transparency": 0}, (255, 255, 255)),
        (Image.new("CMYK", (2, 2), (255, 0, 0, 0)), "TIFF", {}, (0, 255, 255)),
        (Image.new("RGBA", (2, 2), (0, 0, 255, 51)), "WEBP", {"lossless": True}, (204, 204, 255)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else str(value),
)
def test_every_mode_becomes_gray_or_rgb(image, kind, options, expected):
    decoded = decode(encoded(image, kind, **options), "a")
    assert decoded.mode == ("L" if isinstance(expected, int) else "RGB")
    assert decoded.getpixel((1, 1)) == expected


def test_sixteen_bits_are_scaled_not_clipped():
    levels = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    image = decode(encoded(Image.fromarray(levels)), "a.png")
    assert image.mode == "L" and np.asarray(image).tolist() == [[0, 1, 128, 255]]


def test_exif_rotation_is_applied():
    upright = pixels(height=4, width=8)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side: to be turned by 90 degrees clockwise when shown
    image = decode(encoded(Image.fromarray(np.rot90(upright).copy()), exif=exif), "a.png")
    assert np.array_equal(np.asarray(image), upright)


def test_halving_is_the_exact_average():
    block = np.array([[1, 2], [2, 2]], dtype=np.uint8)  # 1.75; rounding in two passes would also give 2, but:
    half = np.array([[0, 1], [1, 0]], dtype=np.uint8)  # 0.5 must not be pushed up, level by level
    image = Image.fromarray(np.block([[block, half], [half + 1, block + 9]]))
    assert np.asarray(resize_square(image, 2)).tolist() == [[2, 0], [2, 11]]
    noise = pixels(height=32, width=32)
    small = np.asarray(resize_square(Image.fromarray(noise), 16))
    exact = noise.reshape(16, 2, 16, 2, 3).mean((1, 3))
    assert np.abs(small - exact).max() <= 0.5 and abs(small.mean() - noise.mean()) < 0.05


def test_other_reductions_are_antialiased():
    fine = np.tile(np.array([0, 255], dtype=np.uint8), (30, 15))  # stripes of one pixel cannot be shown at 20: gray is right
    inner = np.asarray(resize_square(Image.fromarray(fine), 20))[3:-3, 3:-3].astype(int)
    assert inner.std() < 45 and abs(inner.mean() - 127.5) < 6


def test_the_centre_square_is_kept(tmp_path):
    wide, tall = pixels(0, 4, 10), pixels(1, 10, 4)
    assert np.array_equal(np.asarray(resize_square(Image.fromarray(wide), 4)), wide[:, 3:7])
    assert np.array_equal(np.asarray(resize_square(Image.fromarray(tall), 4)), tall[3:7])
    source = load(make_zip(tmp_path / "a.zip", {"a.png": wide, "b.png": pixels(2, 4, 10)}))
    assert source.images.shape == (2, 3, 4, 4)


def test_sizes_that_differ_need_a_resolution(tmp_path):
    members = {"a.png": pixels(0), "b.png": pixels(1), "c.png": pixels(2, 6, 8), "d.png": pixels(2, 9, 9)}
    path = make_zip(tmp_path / "a.zip", members)
    assert "c.png is 8x6, a.png is 6x6: set dataset.resolution" in refused(path)
    assert load(path, resolution=5).images.shape == (4, 3, 5, 5)


def test_one_image(tmp_path):
    source = load(make_zip(tmp_path / "a.zip", images_and([["00000/img00000000.png", 0]], count=1)))
    assert len(source) == 1 and source.spec.classes == 1


def test_gap_in_the_labels_is_allowed(tmp_path):
    assert load(make_zip(tmp_path / "a.zip", images_and([[n, 7] for n in names()]))).spec.classes == 8


def test_known_dataset_has_its_number_of_classes(tmp_path):
    path = make_zip(tmp_path / "a.zip", images_and([[n, 7] for n in names()]))
    assert data.build(DatasetOptions("imagenet32", path=path, resolution=32)).spec.classes == 1000
    path = make_zip(tmp_path / "b.zip", images_and([[n, 1000] for n in names()]))
    with pytest.raises(UserError, match="dataset.json has label 1000, dataset=imagenet32 has classes 0 to 999"):
        data.build(DatasetOptions("imagenet32", path=path))


@pytest.mark.parametrize(
    "labels, message",
    [
        ("{", "dataset.json is not valid JSON"),
        (b"\xff\xfe\x00".decode("latin1"), "dataset.json is not valid JSON"),
        ("[1]", "dataset.json holds a list"),
        (3, "labels in dataset.json are a int"),
        ([["00000/img00000000.png"]], "wanted: \\[image name, class\\]"),
        ([], "dataset.json has 0 labels for 4 images; 00000/img00000000.png has none"),
        ([[n, 0] for n in names(3)], "dataset.json has 3 labels for 4 images; 00000/img00000003.png has none"),
        ([[n, 0] for n in names(6)], "dataset.json labels 2 images that are not in the zip, the first is 00000/img00000004.png"),
        ([[n, 0] for n in names()] + [[names()[1], 1]], "img00000001.png has two labels"),
        ([[n, -1] for n in names()], "label -1 of 00000/img00000000.png"),
        ([[n, [0, 1]] for n in names()], r"label \[0, 1\] of"),
        ([[n, 0.5] for n in names()], "label 0.5 of"),
        ([[n, True] for n in names()], "label true of"),
        ([[n, 10**30] for n in names()], "wanted: a class number from 0 to 999999"),
    ],
)
def test_bad_labels(tmp_path, labels, message):
    found = refused(make_zip(tmp_path / "a.zip", images_and(labels)))
    assert re.search(message, found), found


def test_truncated_image_is_named(tmp_path):
    members = images_and(None) | {"00000/img00000002.png": encoded(pixels(2, 64, 64))[:-400]}
    assert "00000/img00000002.png: cannot be read as an image" in refused(make_zip(tmp_path / "a.zip", members), resolution=8)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_no_image_is_named(tmp_path, workers):
    members = {f"{k:05d}.png": pixels(k, 4, 4) for k in range(2 * CHUNK)} | {"00301.png": "text", "00400.png": "text"}
    assert "00301.png: cannot be read as an image (unknown image format)" in refused(
        make_zip(tmp_path / "a.zip", members), workers=workers
    )


def test_postscript_under_an_image_name_is_not_run(tmp_path):
    eps = encoded(pixels(), "EPS")
    assert "a.png: cannot be read as an image (unknown image format)" in refused(make_zip(tmp_path / "a.zip", {"a.png": eps}))


def test_gray_beyond_sixteen_bits_is_refused(tmp_path):
    tiff = encoded(Image.fromarray(np.array([[0, 70000]], np.int32)), "TIFF")
    assert "gray levels span 0 .. 70000, allowed: 0 .. 65535" in refused(make_zip(tmp_path / "a.zip", {"a.tif": tiff}))


def test_unreadable_file(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "a.zip", images_and(None))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: open(tmp_path))  # fails as a file without permission does: OSError
    assert "cannot be read (Is a directory)" in refused(path)


def test_float_pixels_are_refused(tmp_path):
    tiff = encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF")
    assert "a.tif: cannot be read as an image (float pixels" in refused(make_zip(tmp_path / "a.zip", {"a.tif": tiff}))


def test_damaged_member_is_named(tmp_path):
    path = make_zip(tmp_path / "a.zip", images_and(None))
    content = bytearray((tmp_path / "a.zip").read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(names()[2])
    content[info.header_offset + 80] ^= 255
    (tmp_path / "a.zip").write_bytes(content)
    assert f"{names()[2]} cannot be unpacked" in refused(path)


def test_encrypted_member_is_named(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"a.png": pixels()})
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # set the "encrypted" flag in both headers
        place = content.index(signature) + offset
        content[place : place + 2] = struct.pack("<H", 1)
    (tmp_path / "a.zip").write_bytes(content)
    assert "a.png cannot be unpacked" in refused(path)


def test_files_that_are_no_dataset(tmp_path):
    (tmp_path / "text.zip").write_text("no zip")
    assert "is no zip file, or a truncated one" in refused(str(tmp_path / "text.zip"))
    path = make_zip(tmp_path / "cut.zip", images_and(None))
    (tmp_path / "cut.zip").write_bytes((tmp_path / "cut.zip").read_bytes()[:-30])
    assert "is no zip file, or a truncated one" in refused(path)
    assert "no images in the zip (looked for .png" in refused(make_zip(tmp_path / "empty.zip", {}))
    assert "is a folder; wanted: FILE.zip" in refused(str(tmp_path))
    assert "no such file or folder; wanted: FILE.zip" in refused(str(tmp_path / "missing.zip"))


def test_data_larger_than_memory_is_refused(tmp_path):
    check_memory(1000, 32)
    with pytest.raises(UserError, match="10000000 images at 4096x4096 take .* GiB, this machine has .*lower dataset.resolution"):
        check_memory(10_000_000, 4096)
    path = make_zip(tmp_path / "a.zip", images_and(None))
    assert "lower dataset.resolution" in refused(path, resolution=10**7)
