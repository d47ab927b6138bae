"""Folders, MNIST, CIFAR-100, CelebA and LSUN: every form that a path may have, labels, padding, and refusals in one line."""

import gzip
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import data
from data import DatasetOptions, cifar10, mnist
from errors import UserError


def picture(seed=0, height=8, width=8, channels=3):
    shape = (height, width) if channels == 1 else (height, width, channels)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def fill(folder, names, **options):
    """PNG images ``names`` below ``folder``; each a function of its place in the list."""
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(seed, **options).save(path)
    return folder


def load(name, path, **options):
    return data.build(DatasetOptions(name, path=None if path is None else str(path), **options))


def refused(name, path, **options):
    with pytest.raises(UserError) as error:
        load(name, path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def tensor_of(seed, **options):
    return torch.from_numpy(np.atleast_3d(np.array(picture(seed, **options)))).permute(2, 0, 1)


# folders ---------------------------------------------------------------------------------------------------------------


def test_one_subfolder_a_class(tmp_path):
    source = load("folder", fill(tmp_path, ["dog/2.png", "cat/x/9.png", "cat/1.png", "emu/5.png"]))
    assert source.spec == data.Spec("folder", 8, 3, 3, ("cat", "dog", "emu"))
    assert source.labels.tolist() == [0, 0, 1, 2]
    assert all(torch.equal(source.images[k], tensor_of(seed)) for k, seed in enumerate([2, 1, 0, 3]))  # in the order of names


def test_flat_folder_and_one_subfolder_have_no_labels(tmp_path):
    flat = load("folder", fill(tmp_path / "flat", ["b.png", "a.png"]))
    inner = load("folder", fill(tmp_path / "outer", ["all/b.png", "all/a.png"]))
    assert flat.spec == inner.spec == data.Spec("folder", 8, 3, 0)
    assert torch.equal(flat.images, inner.images) and torch.equal(flat.images[0], tensor_of(1))


def test_unpacked_dataset_has_the_labels_of_its_json_and_none_without(tmp_path):
    names = [f"0000{k}/img0000000{k}.png" for k in range(3)]
    fill(tmp_path, names)
    bare = load("folder", tmp_path)
    assert bare.spec.classes == 0 and "so there are no labels" in " ".join(bare.report())
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": [[name, 2 - k] for k, name in enumerate(names)]}))
    assert load("folder", tmp_path).labels.tolist() == [2, 1, 0]
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": [[name, 0] for name in [*names, "00009/img00000009.png"]]}))
    assert "dataset.json labels 1 images that are not in the folder, the first is 00009/img" in refused("folder", tmp_path)


def test_a_zip_of_a_folder_is_read_as_zip(tmp_path):
    fill(tmp_path / "a", ["b.png", "a.png"])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("b.png", "a.png"):
            archive.write(tmp_path / "a" / name, name)
    assert torch.equal(load("folder", tmp_path / "a.zip").images, load("folder", tmp_path / "a").images)


def test_other_files_hidden_ones_pipes_and_circular_links_do_no_harm(tmp_path):
    fill(tmp_path, ["a/1.png", "b/2.png", ".thumbs/3.png", "a/.4.png", "__MACOSX/5.png"])
    (tmp_path / "a" / "notes.txt").write_text("x")
    os.mkfifo(tmp_path / "a" / "pipe.png")  # reading it would wait for ever
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "b" / "nowhere.png").symlink_to(tmp_path / "missing")
    source = load("folder", tmp_path)
    assert len(source) == 2 and source.spec.class_names == ("a", "b")
    assert any("left alone: " in line and ".txt" in line for line in source.report())


def test_linked_class_folders_are_followed(tmp_path):
    fill(tmp_path / "store", ["x/1.png", "y/2.png"])
    (tmp_path / "chosen").mkdir()
    for name in "xy":
        (tmp_path / "chosen" / name).symlink_to(tmp_path / "store" / name)
    assert load("folder", tmp_path / "chosen").labels.tolist() == [0, 1]


def test_images_beside_subfolders_are_unlabelled_and_said(tmp_path):
    source = load("folder", fill(tmp_path, ["a.png", "sub/b.png"]))
    assert source.spec.classes == 0 and any("both beside and inside sub-folders" in line for line in source.report(brief=True))


def test_splits_as_classes_and_empty_classes_are_said(tmp_path):
    fill(tmp_path, ["train/1.png", "val/2.png"])
    (tmp_path / "test").mkdir()
    report = " ".join(load("folder", tmp_path).report(brief=True))
    assert f"set dataset.path={tmp_path}/train" in report and "sub-folders without images are no classes (test)" in report


@pytest.mark.parametrize("side, resolution", [(None, 8), (32, 32), (16, 16)])
def test_any_size_is_cropped_and_resized(tmp_path, side, resolution):
    fill(tmp_path, ["1.png", "2.png"], height=8, width=20)
    source = load("folder", tmp_path, resolution=side)
    assert source.images.shape == (2, 3, resolution, resolution)
    if side is None:
        assert torch.equal(source.images[1], tensor_of(1, height=8, width=20)[:, :, 6:14])


def test_padding_is_black_centred_and_before_resizing(tmp_path):
    fill(tmp_path, ["1.png", "2.png"], height=5, width=6, channels=1)
    source = load("folder", tmp_path, pad_to=8)
    inner = tensor_of(1, height=5, width=6, channels=1)
    assert source.images.shape == (2, 1, 8, 8) and torch.equal(source.images[1, :, 1:6, 1:7], inner)
    assert source.images[1].sum(dtype=torch.int64) == inner.sum(dtype=torch.int64)
    half = torch.nn.functional.avg_pool2d(source.images.double(), 2)
    assert (load("folder", tmp_path, pad_to=8, resolution=4).images - half).abs().max() <= 0.5
    assert torch.equal(load("folder", tmp_path, pad_to=3).images, load("folder", tmp_path).images)  # only smaller ones are padded


def test_known_class_numbers_come_from_the_names_of_subfolders(tmp_path):
    source = load("cifar10", fill(tmp_path / "names", ["truck/1.png", "cat/2.png"]))
    assert source.labels.tolist() == [3, 9] and source.spec.classes == 10 and source.spec.class_names[3] == "cat"
    assert load("mnist", fill(tmp_path / "digits", ["7/1.png", "03/2.png"])).labels.tolist() == [3, 7]
    assert load("fashion_mnist", fill(tmp_path / "clothes", ["T-shirt_top/1.png", "Ankle boot/2.png"])).labels.tolist() == [9, 0]
    message = refused("cifar10", fill(tmp_path / "strange", ["cat/1.png", "unicorn/2.png"]))
    assert "sub-folder unicorn is no class of dataset=cifar10; wanted: sub-folders named airplane, automobile, bird" in message
    message = refused("imagenet32", fill(tmp_path / "few", ["n01/1.png", "n02/2.png"]))
    assert "sub-folder n01 is no class of dataset=imagenet32; wanted: 1000 sub-folders, one a class" in message


def test_folders_that_hold_nothing(tmp_path):
    for name in ("folder", "ffhq64", "celeba", "lsun", "mnist"):
        message = refused(name, tmp_path)
        assert "no images in the folder (looked for .png" in message and "wanted: " in message
        assert "dataset.path=nowhere: no such file or folder; wanted: " in refused(name, "nowhere")
    assert "dataset.path is not set: dataset=folder needs dataset.path=a folder of images" in refused("folder", None)
    assert "dataset.path is not set: dataset=lsun needs" in refused("lsun", None)


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    fill(tmp_path, ["1.png", "2.png"])
    real = Path.read_bytes

    def read_bytes(path):
        if path.name == "2.png":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert "2.png: cannot be read (Permission denied); replace or remove it, or set dataset.on_error=skip" in refused(
        "folder", tmp_path
    )


def test_lsun_databases_say_what_to_do(tmp_path):
    (tmp_path / "bedroom_train_lmdb").mkdir()
    (tmp_path / "bedroom_train_lmdb" / "data.mdb").touch()
    for path in (tmp_path, tmp_path / "bedroom_train_lmdb"):
        assert "bedroom_train_lmdb is an LMDB database: unpack it first" in refused("lsun", path)


# MNIST -----------------------------------------------------------------------------------------------------------------


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(split):
    rng = np.random.default_rng(len(split))
    return rng.integers(0, 256, (4, 28, 28), dtype=np.uint8), rng.integers(0, 10, 4, dtype=np.uint8)


def write_idx(raw, ending=""):
    raw.mkdir(parents=True)
    for split in ("train", "test"):
        for name, array in zip(mnist.file_names(split), digits(split), strict=True):
            content = idx(array)
            (raw / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)
    return raw


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("name, inner", [("mnist", "MNIST/raw"), ("fashion_mnist", "FashionMNIST/raw"), ("mnist", "")])
def test_torchvisions_own_files(tmp_path, name, inner, ending):
    write_idx(tmp_path / "root" / inner, ending)
    source = load(name, tmp_path / "root", pad_to=32)
    images, labels = digits("train")
    assert source.spec == data.Spec(name, 32, 1, 10, mnist.CLASS_NAMES[name])
    assert np.array_equal(source.images[:, 0, 2:30, 2:30].numpy(), images) and source.labels.tolist() == labels.tolist()
    assert source.images.sum(dtype=torch.int64) == images.sum()
    test = mnist.build(DatasetOptions(name, path=str(tmp_path / "root")), split="test")
    assert np.array_equal(test.images[:, 0].numpy(), digits("test")[0])


def test_torchvision_reads_the_same(tmp_path):
    import torchvision

    write_idx(tmp_path / "MNIST" / "raw")
    theirs = torchvision.datasets.MNIST(tmp_path)
    ours = load("mnist", tmp_path)
    assert torch.equal(ours.images[:, 0], theirs.data) and torch.equal(ours.labels, theirs.targets)


def test_images_have_no_test_split(tmp_path):
    fill(tmp_path, ["1/1.png", "2/2.png"])
    for builder, name in ((mnist.build, "mnist"), (cifar10.build, "cifar10")):
        with pytest.raises(UserError, match="these images are one set, without a test part"):
            builder(DatasetOptions(name, path=str(tmp_path)), split="test")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not an IDX file"),
        (idx(digits("train")[0])[:-1], "not an IDX file of 3-dimensional bytes, or a truncated one"),
        (idx(digits("train")[1]), "not an IDX file of 3-dimensional bytes"),
        (idx(digits("train")[0][:3]), "has 3 images and train-labels-idx1-ubyte 4 labels"),
        (gzip.compress(idx(digits("train")[0]))[:-20], "cannot be unpacked"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, content, message):
    write_idx(tmp_path / "raw")
    (tmp_path / "raw" / mnist.file_names("train")[0]).write_bytes(content)
    found = refused("mnist", tmp_path)
    assert message in found and "train-images-idx3-ubyte" in found
    (tmp_path / "raw" / mnist.file_names("train")[1]).unlink()
    if "labels" in message:
        assert "train-labels-idx1-ubyte: cannot be read (No such file" in refused("mnist", tmp_path)


# CIFAR-100, and what is downloaded ---------------------------------------------------------------------------------------


def write_cifar100(folder):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    pixels, labels = rng.integers(0, 256, (5, 3072), dtype=np.uint8), rng.integers(0, 100, 5).tolist()
    content = {b"data": pixels, b"fine_labels": labels, b"coarse_labels": [0] * 5}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return pixels, labels


def test_cifar100(tmp_path):
    pixels, labels = write_cifar100(tmp_path / "cifar-100-python")
    source = load("cifar100", tmp_path)
    assert source.labels.tolist() == labels and np.array_equal(source.images.view(5, -1).numpy(), pixels)
    names = source.spec.class_names
    assert source.spec.classes == 100 == len(set(names)) and list(names) == sorted(names)
    assert (names[0], names[14], names[99]) == ("apple", "butterfly", "worm")
    (tmp_path / "cifar-100-python" / "train").write_bytes(pickle.dumps({b"data": pixels, b"fine_labels": [100] * 5}))
    assert "not a CIFAR-100 batch file, or a damaged one (labels are not a list of numbers from 0 to 99)" in refused(
        "cifar100", tmp_path
    )


@pytest.mark.parametrize("name, title", [("mnist", "MNIST"), ("fashion_mnist", "Fashion-MNIST"), ("cifar100", "CIFAR-100"),
                                         ("celeba", "CelebA")])  # fmt: skip
def test_failed_downloads_end_in_one_line_and_leave_nothing(tmp_path, monkeypatch, name, title, capsys):
    import urllib.error
    import urllib.request

    def offline(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    monkeypatch.setattr("torchvision.datasets.utils.download_file_from_google_drive", offline)
    message = refused(name, None, download_dir=str(tmp_path / "downloads"))
    assert message.startswith(f"{title} could not be downloaded to {tmp_path}") and ": set dataset.path to " in message
    assert list((tmp_path / "downloads").iterdir()) == [] and capsys.readouterr().out == ""


def test_earlier_downloads_are_used(tmp_path, monkeypatch):
    import urllib.request

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("went to the network"))
    write_idx(tmp_path / "MNIST" / "raw", ".gz")
    write_cifar100(tmp_path / "cifar-100-python")
    fill(tmp_path / "faces", ["img_align_celeba/1.png", "img_align_celeba/2.png"])
    with zipfile.ZipFile(tmp_path / "img_align_celeba.zip", "w") as archive:
        for name in ("img_align_celeba/1.png", "img_align_celeba/2.png"):
            archive.write(tmp_path / "faces" / name, name)
    assert len(load("mnist", None, download_dir=str(tmp_path))) == 4
    assert len(load("cifar100", None, download_dir=str(tmp_path))) == 5
    faces = load("celeba", None, download_dir=str(tmp_path))
    assert faces.spec == data.Spec("celeba", 8, 3, 0)
    assert torch.equal(faces.images, load("celeba", tmp_path / "faces").images)
