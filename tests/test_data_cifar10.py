"""CIFAR-10 from a folder, a zip or a download: the files, and what happens when they are damaged, hostile or out of reach."""

import hashlib
import io
import json
import os
import pickle
import re
import socket
import struct
import tarfile
import urllib.error
import zipfile

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

import data
from data import DatasetOptions, cifar10
from data.cifar10 import FOLDER
from errors import UserError

COUNT = 3  # images a batch file
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def batch(seed):
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (COUNT, 3072), dtype=np.uint8)
    return pixels, generator.integers(0, 10, COUNT).tolist()


def python2_pickle(pixels, labels):
    """A batch file as Python 2 wrote the published ones: protocol 2, byte strings for text, numpy's old module names."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
        b"(K\x01(" + b"J" + struct.pack("<i", len(pixels)) + b"J" + struct.pack("<i", 3072) + b"t"
        b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", pixels.nbytes) + pixels.tobytes() + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"batch_label") + text(b"b") + text(b"labels") + numbers + text(b"data") + array + b"u."


def write_folder(folder, protocol="python2"):
    folder.mkdir(parents=True)
    for k, name in enumerate([f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]):
        pixels, labels = batch(k)
        if protocol == "python2":
            content = python2_pickle(pixels, labels)
        else:
            content = pickle.dumps({b"data": pixels, b"labels": labels, b"filenames": [b"x.png"]}, protocol=protocol)
        (folder / name).write_bytes(content)
    return folder


def load(path, **options):
    return data.build(DatasetOptions("cifar10", path=str(path), **options))


def refused(path):
    with pytest.raises(UserError) as error:
        load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("protocol", ["python2", 2, 4, 5])
def test_folder(tmp_path, protocol):
    folder = write_folder(tmp_path / FOLDER, protocol)
    for path in (folder, tmp_path):
        source = load(path)
        assert source.spec == data.Spec("cifar10", 32, 3, 10, CLASS_NAMES)
        assert torch.equal(source.images, torch.from_numpy(np.concatenate([batch(k)[0] for k in range(5)])).view(-1, 3, 32, 32))
        assert source.labels.tolist() == sum((batch(k)[1] for k in range(5)), [])


def test_folder_agrees_with_torchvision(tmp_path, monkeypatch):
    write_folder(tmp_path / FOLDER, "python2")
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_load_meta", lambda self: None)
    theirs = torchvision.datasets.CIFAR10(tmp_path)
    ours = load(tmp_path)
    assert np.array_equal(ours.images.permute(0, 2, 3, 1).numpy(), theirs.data) and ours.labels.tolist() == theirs.targets


def test_test_split(tmp_path):
    write_folder(tmp_path / FOLDER)
    source = cifar10.build(DatasetOptions("cifar10", path=str(tmp_path)), split="test")
    assert torch.equal(source.images.view(COUNT, -1), torch.from_numpy(batch(5)[0]))


def write_zip(path, images, labels):
    with zipfile.ZipFile(path, "w") as archive:
        table = []
        for k, (image, label) in enumerate(zip(images, labels, strict=True)):
            buffer = io.BytesIO()
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "PNG")
            archive.writestr(f"{k:05d}.png", buffer.getvalue())
            table.append([f"{k:05d}.png", int(label)])
        archive.writestr("dataset.json", json.dumps({"labels": table}))
    return path


@pytest.mark.parametrize("resolution", [None, 16, 24, 40])
def test_zip_and_folder_are_the_same_data(tmp_path, resolution):
    write_folder(tmp_path / FOLDER)
    folder = load(tmp_path)
    path = write_zip(tmp_path / "a.zip", folder.images, folder.labels)
    from_zip, from_folder = load(path, resolution=resolution), load(tmp_path, resolution=resolution)
    assert from_zip.spec == from_folder.spec and from_zip.spec.resolution == (resolution or 32)
    assert from_zip.content_hash == from_folder.content_hash


def test_zip_with_other_labels_is_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", torch.zeros(2, 3, 32, 32, dtype=torch.uint8), [0, 10])
    assert "has label 10, dataset=cifar10 has classes 0 to 9" in refused(path)


def test_reduced_images_are_block_averages(tmp_path):
    write_folder(tmp_path / FOLDER)
    exact = torch.nn.functional.avg_pool2d(load(tmp_path).images.double(), 2)
    assert (load(tmp_path, resolution=16).images - exact).abs().max() <= 0.5


class Bomb:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
def test_crafted_batch_file_cannot_run_code(tmp_path, protocol):
    folder = write_folder(tmp_path / FOLDER)
    for call in (Bomb(os.mkdir, str(tmp_path / "owned")), Bomb(eval, f"__import__('os').mkdir({str(tmp_path / 'owned')!r})")):
        (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": call, b"labels": []}, protocol=protocol))
        message = refused(tmp_path)
        assert "data_batch_3: not a CIFAR-10 batch file" in message and "only arrays, numbers and text are allowed" in message
        assert not (tmp_path / "owned").exists()


def test_numpy_names_in_a_batch_file_make_nothing():
    unpickled = cifar10.DataUnpickler(io.BytesIO(pickle.dumps(np.array([1], dtype=object), protocol=2))).load()
    assert isinstance(unpickled, cifar10.Recorded)
    with pytest.raises(ValueError, match="not an array of bytes"):
        cifar10.as_array(unpickled)
    for name in ("load", "fromfile", "memmap"):
        with pytest.raises(pickle.UnpicklingError, match=f"names numpy.{name}"):
            cifar10.DataUnpickler(io.BytesIO(b"cnumpy\n" + name.encode() + b"\n.")).load()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not a CIFAR-10 batch file"),
        (python2_pickle(*batch(1))[:-900], "not a CIFAR-10 batch file"),
        (pickle.dumps([1]), "holds a list"),
        (pickle.dumps({b"data": batch(1)[0]}), "no entry 'labels'"),
        (pickle.dumps({b"data": batch(1)[0][:2], b"labels": [1, 2, 3]}), r"shape \(2, 3072\) for 3 labels"),
        (pickle.dumps({b"data": batch(1)[0], b"labels": [1, 2, 11]}), "labels are not a list of numbers from 0 to 9"),
        (pickle.dumps({b"data": batch(1)[0].astype(float), b"labels": [1, 2, 3]}), "not an array of bytes"),
        (pickle.dumps({b"data": batch(1)[0].tolist(), b"labels": [1, 2, 3]}), "data is not an array"),
    ],
)
def test_damaged_batch_file_is_named(tmp_path, content, message):
    folder = write_folder(tmp_path / FOLDER)
    (folder / "data_batch_2").write_bytes(content)
    found = refused(tmp_path)
    assert "data_batch_2: not a CIFAR-10 batch file" in found and re.search(message, found), found


def test_missing_files(tmp_path):
    assert f"holds no data_batch_1; wanted: the extracted {FOLDER} folder, or a StyleGAN/EDM dataset zip" in refused(tmp_path)
    folder = write_folder(tmp_path / FOLDER)
    (folder / "data_batch_4").unlink()
    assert "data_batch_4: cannot be read (No such file or directory)" in refused(tmp_path)
    assert "no such file or folder; wanted: the extracted" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("text")
    assert "is no zip file" in refused(tmp_path / "file")


class HalfResponse:
    """A server that answers, sends a little, and dies."""

    url, length, sent = "https://example.org/cifar-10-python.tar.gz", 1 << 20, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, size):
        if self.sent:
            raise TimeoutError("timed out")
        self.sent = True
        return b"x" * 100


@pytest.mark.parametrize("kind", ["offline", "dies halfway"])
def test_failed_download_ends_in_one_line_and_leaves_nothing(tmp_path, monkeypatch, kind):
    timeouts = []

    def urlopen(*_, **__):
        timeouts.append(socket.getdefaulttimeout())
        if kind == "offline":
            raise urllib.error.URLError("Name or service not known")
        return HalfResponse()

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    options = DatasetOptions("cifar10", download_dir=str(tmp_path / "downloads"))
    reason = {"offline": "service not known", "dies halfway": "timed out"}[kind]
    with pytest.raises(UserError, match=f"not be downloaded to .*{reason}.*: set dataset.path to the extracted .*zip") as error:
        data.build(options)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "downloads").iterdir()) == []
    assert timeouts and all(timeout == cifar10.TIMEOUT for timeout in timeouts)  # never waits for ever
    assert socket.getdefaulttimeout() is None


def test_earlier_download_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("went to the network"))
    write_folder(tmp_path / "made" / FOLDER)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(tmp_path / "made" / FOLDER, FOLDER)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / "cifar-10-python.tar.gz").write_bytes(buffer.getvalue())
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", hashlib.md5(buffer.getvalue()).hexdigest())
    options = DatasetOptions("cifar10", download_dir=str(downloads))
    first = data.build(options)  # from the archive
    assert sorted(path.name for path in downloads.iterdir()) == [FOLDER, "cifar-10-python.tar.gz"]
    (downloads / "cifar-10-python.tar.gz").unlink()
    assert data.build(options).content_hash == first.content_hash == load(tmp_path / "made").content_hash  # from the folder
