"""The store: cached once, found again without reading, never half built, and the same batches from memory, disk and workers."""

import itertools
import json
import os
import signal
import threading
import time
import zipfile

import pytest
import torch
import toy_run
import toys
from PIL import Image
from test_data_zip import encoded, make_zip, pixels

import benchmarks.data
import data
from data import DatasetOptions, archive, decode, store
from errors import UserError


@pytest.fixture
def small(monkeypatch):
    """Even the smallest sets go to the cache."""
    monkeypatch.setattr(store, "SMALL", (0, 0))


@pytest.fixture
def never(monkeypatch):
    """After a call of it nothing may decode an image."""

    def forbid():
        monkeypatch.setattr(archive, "examine", lambda *_: pytest.fail("read an image again"))
        monkeypatch.setattr("data.folder.examine", lambda *_: pytest.fail("read an image again"))

    return forbid


def load(path, cache, **options):
    return data.build(DatasetOptions("folder", path=str(path), cache=None if cache is None else str(cache), **options))


def many(path, count=40, labelled=True):
    members = {f"{k:03d}.png": pixels(k) for k in range(count)}
    if labelled:
        members["dataset.json"] = json.dumps({"labels": [[f"{k:03d}.png", k % 3] for k in range(count)]})
    return make_zip(path, members)


def many_in_folder(path):
    for k in range(6):
        (path / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(k)).save(path / "ab"[k % 2] / f"{k}.png")
    return path


def same(one, other):
    return one.spec == other.spec and torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


# the cache -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [many, many_in_folder], ids=["zip", "folder"])
def test_second_opening_reads_no_image_and_gives_the_same(tmp_path, small, never, make):
    path = make(tmp_path / "data")
    fresh, first = load(path, None), load(path, tmp_path / "cache")
    never()
    again = load(path, tmp_path / "cache")
    assert same(fresh, first) and same(first, again)
    assert fresh.content_hash == first.content_hash == again.content_hash
    assert fresh.unlabelled().content_hash == again.unlabelled().content_hash != again.content_hash
    assert fresh.report() == again.report()
    assert [entry.name[:5] for entry in (tmp_path / "cache").iterdir()] == ["data-"]


def test_content_hash_of_a_cached_store_reads_no_pixels(tmp_path, small, monkeypatch):
    path = many(tmp_path / "a.zip")
    expected = load(path, tmp_path / "cache").content_hash
    monkeypatch.setattr("data.source.content_hashes", lambda *_: pytest.fail("read all pixels"))
    again = load(path, tmp_path / "cache")
    assert again.content_hash == expected and len(again.unlabelled().content_hash) == 64


def test_small_sets_leave_no_cache(tmp_path):
    load(many(tmp_path / "a.zip"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_what_changes_pixels_or_files_is_another_entry(tmp_path, small):
    path, cache = many_in_folder(tmp_path / "data"), tmp_path / "cache"
    first = load(path, cache)
    assert load(path, cache, resolution=4).images.shape[-1] == 4
    assert load(path, cache, pad_to=8).images.shape[-1] == 8
    image = path / "a" / "0.png"
    before = image.stat()
    Image.fromarray(pixels(99)).save(image)
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    changed = load(path, cache)
    assert not torch.equal(changed.images[0], first.images[0])
    (path / "b").rename(path / "c")
    assert load(path, cache).spec.class_names == ("a", "c")
    assert len(list(cache.iterdir())) == 5


def test_a_zip_is_known_by_its_checksums_wherever_it_lies(tmp_path, small, never):
    path = many(tmp_path / "a.zip")
    load(path, tmp_path / "cache")
    members = {f"{k:03d}.png": pixels(k) for k in range(40)} | {"005.png": pixels(77)}
    other = load(make_zip(tmp_path / "b.zip", members), tmp_path / "cache")
    assert torch.equal(other.images[5], torch.from_numpy(pixels(77)).permute(2, 0, 1))
    os.rename(path, tmp_path / "moved.zip")
    os.utime(tmp_path / "moved.zip")
    never()
    load(tmp_path / "moved.zip", tmp_path / "cache")


@pytest.mark.parametrize("limit", [None, 3], ids=["zip32", "zip64"])
def test_the_central_directory_is_found_without_zipfile(tmp_path, monkeypatch, limit):
    if limit:
        monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", limit)  # from where on the closing records are those of zip64
    path = tmp_path / "a.zip"
    many(path)
    content, count = archive.directory(path)
    assert count == 41 and content.startswith(b"PK\1\2") and content.count(b"PK\1\2") == 41
    path.write_bytes(path.read_bytes()[:-5])
    assert archive.directory(path) is None
    path.write_bytes(b"")
    assert archive.directory(path) is None


def test_zips_of_unusual_form_are_read_all_the_same(tmp_path, small, never):
    path = tmp_path / "a.zip"
    many(path)
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"made by hand"
    assert archive.directory(path) is None
    first = load(path, tmp_path / "cache")
    never()
    assert same(first, load(path, tmp_path / "cache"))


@pytest.mark.parametrize("damage", ["images.bin", "about.json", "labels.npy"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_broken_entry_is_made_anew(tmp_path, small, damage, how):
    path = many(tmp_path / "a.zip")
    first = load(path, tmp_path / "cache")
    expected = first.images.clone()
    file = next((tmp_path / "cache").iterdir()) / damage
    del first
    file.unlink() if how == "gone" else file.write_bytes(file.read_bytes()[:-7])
    assert torch.equal(load(path, tmp_path / "cache").images, expected)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_stopped_while_reading_leaves_nothing(tmp_path, small, monkeypatch):
    path, calls = many(tmp_path / "a.zip"), itertools.count()
    real = archive.examine

    def stop(*arguments):
        if next(calls) == 20:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(archive, "examine", stop)
    with pytest.raises(KeyboardInterrupt):
        load(path, tmp_path / "cache", workers=0)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_process_left_is_replaced(tmp_path, small):
    path = many(tmp_path / "a.zip")
    load(path, tmp_path / "cache")
    entry = next((tmp_path / "cache").iterdir())
    entry.rename(entry.with_name(f".{entry.name}.tmp"))
    assert len(load(path, tmp_path / "cache")) == 40
    assert [e.name for e in (tmp_path / "cache").iterdir()] == [entry.name]


def test_two_at_once_read_once(tmp_path, small, monkeypatch, capfd):
    path, started, go, decoded = many(tmp_path / "a.zip"), threading.Event(), threading.Event(), []
    real = archive.examine

    def slow(*arguments):
        started.set()
        assert go.wait(30)
        decoded.append(arguments[1])
        return real(*arguments)

    monkeypatch.setattr(archive, "examine", slow)
    found = {}

    def open_it(number):
        found[number] = load(path, tmp_path / "cache", workers=0)

    threads = [threading.Thread(target=open_it, args=(number,)) for number in range(2)]
    threads[0].start()
    assert started.wait(30)
    threads[1].start()
    said, deadline = "", time.monotonic() + 20
    while "waiting for it" not in said and time.monotonic() < deadline:
        time.sleep(0.02)
        said += capfd.readouterr().err
    go.set()
    for thread in threads:
        thread.join(30)
    assert said.count("another process is reading this data, waiting for it") == 1
    assert same(found[0], found[1]) and len(decoded) == 41  # the first one twice, to know its size
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_cache_that_cannot_be_written(tmp_path, small):
    path = many(tmp_path / "a.zip")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="dataset.cache=.*file: cannot write there .*give another folder, or dataset.cache=null"):
        load(path, tmp_path / "file")
    with pytest.raises(UserError, match="take up to .* GiB there and .* GiB are free; give a folder on another disk"):
        load(path, tmp_path / "cache", resolution=10**7)
    with pytest.raises(UserError, match="dataset.cache=: empty"):
        load(path, " ")


def test_gray_stays_one_channel_until_colour_comes(tmp_path, small):
    gray = {f"{k:03d}.png": pixels(k, channels=1) for k in range(30)}
    source = load(make_zip(tmp_path / "gray.zip", gray), tmp_path / "cache")
    assert source.images.shape == (30, 1, 6, 6)
    mixed = load(make_zip(tmp_path / "mixed.zip", gray | {"020.png": pixels(7)}), tmp_path / "cache")
    assert mixed.images.shape == (30, 3, 6, 6)
    assert torch.equal(mixed.images[20], torch.from_numpy(pixels(7)).permute(2, 0, 1))
    others = [k for k in range(30) if k != 20]
    assert torch.equal(mixed.images[others], source.images[others].expand(-1, 3, -1, -1))


def test_colour_in_a_later_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHUNK", 4)
    monkeypatch.setattr(store, "PIECE_BYTES", 3 * 36)
    members = {f"{k:03d}.png": pixels(k, channels=1) for k in range(11)} | {"011.png": pixels(3)}
    images = load(make_zip(tmp_path / "a.zip", members), None).images
    assert all(torch.equal(images[k, c], torch.from_numpy(pixels(k, channels=1))) for k in range(11) for c in range(3))


# skipping --------------------------------------------------------------------------------------------------------------


def broken(path):
    members = {f"{k}.png": pixels(k, 32, 32) for k in range(6)}
    members |= {"0.png": "text", "3.png": encoded(pixels(3, 32, 32))[:-900]}
    labels = {"dataset.json": json.dumps({"labels": [[f"{k}.png", k] for k in range(6)]})}
    return make_zip(path, members | labels)


@pytest.mark.parametrize("cached", [False, True])
def test_skip_leaves_out_what_cannot_be_read_and_strict_stops(tmp_path, monkeypatch, cached):
    monkeypatch.setattr(store, "SMALL", (0, 0) if cached else (1000, 1 << 30))
    path = broken(tmp_path / "a.zip")

    def strict():
        with pytest.raises(UserError) as error:
            load(path, tmp_path / "cache")
        return str(error.value)

    before = strict()
    assert f"dataset.path={path}: 0.png: cannot be read as an image" in before
    assert f"or set dataset.on_error=skip (python -m data.check {path} lists every such file)" in before
    source = load(path, tmp_path / "cache", on_error="skip")
    assert source.labels.tolist() == [1, 2, 4, 5] and source.spec.classes == 6
    assert torch.equal(source.images[2], torch.from_numpy(pixels(4, 32, 32)).permute(2, 0, 1))
    assert [name for name, _ in source.findings.unreadable] == ["0.png", "3.png"]
    report = "\n".join(source.report())
    assert "0.png: cannot be read" in report and "3.png: cannot be read" in report and "2 images left out" in report
    assert strict() == before  # also from the store that skipped


def test_nothing_readable(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"a.png": "text", "b.png": b""})
    with pytest.raises(UserError, match="none of the 2 images can be read, the first: a.png: cannot be read as an image"):
        load(path, None, on_error="skip")
    with pytest.raises(UserError, match="dataset.on_error=ignore: unknown, allowed: skip, strict"):
        load(path, None, on_error="ignore")


# batches ---------------------------------------------------------------------------------------------------------------


def announced(count=60, size=7, n=40):
    rng = torch.Generator().manual_seed(1)
    return [torch.randint(n, (size,), generator=rng) for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_same_batches_in_the_same_order_whichever_path(tmp_path, small, workers):
    path = many(tmp_path / "a.zip")
    memory = load(path, None).to("cpu")
    disk = load(path, tmp_path / "cache", memory_gb=0.0, workers=workers).to("cpu")
    assert not disk.fits(torch.device("cpu")) and memory.fits(torch.device("cpu"))
    order = announced()
    before = torch.get_rng_state()
    with disk.ahead(iter(order)), memory.ahead(iter(order)):
        assert (disk._ahead is not None) == (workers > 0)
        for step, indices in enumerate(order):
            if step % 9 == 4:  # somebody else reads in between, what nobody announced
                assert torch.equal(disk.batch(torch.tensor([3, 3]))[0], memory.images[[3, 3]])
            if step % 11 == 5:  # one that was announced is not asked for
                continue
            ours, theirs = disk.batch(indices), memory.batch(indices)
            assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    assert disk._ahead is None and torch.equal(torch.get_rng_state(), before)  # the run's randomness is untouched


def test_workers_do_the_reading(tmp_path, small, monkeypatch):
    disk = load(many(tmp_path / "a.zip"), tmp_path / "cache", memory_gb=0.0, workers=1).to("cpu")
    order = announced(5)
    expected = [disk.batch(indices)[0] for indices in order]
    with disk.ahead(iter(order)):
        disk.images = None
        assert all(torch.equal(disk.batch(indices)[0], images) for indices, images in zip(order, expected, strict=True))


def test_training_goes_on_when_workers_are_killed(tmp_path, small, capfd):
    disk = load(many(tmp_path / "a.zip"), tmp_path / "cache", memory_gb=0.0, workers=2).to("cpu")
    order = announced(40)
    with disk.ahead(iter(order)):
        workers = disk._ahead._batches._workers
        for number in (signal.SIGINT, signal.SIGTERM):  # what a terminal or scheduler sends to the whole group
            os.kill(workers[0].pid, number)
        for step, indices in enumerate(order):
            if step == 10:
                os.kill(workers[1].pid, signal.SIGKILL)
            assert torch.equal(disk.batch(indices)[0], disk.images[indices])
            if step == 9:
                assert all(worker.is_alive() for worker in workers)
    assert capfd.readouterr().err.count("the data workers are lost") == 1


def test_what_fits_moves_to_the_device_and_what_does_not_stays(tmp_path, small):
    path = many(tmp_path / "a.zip")
    assert load(path, tmp_path / "cache").to("meta").images.device.type == "meta"
    large = load(path, tmp_path / "cache", memory_gb=1e-6).to("meta")
    assert large.images.device.type == "cpu" and large.device.type == "meta"
    images, labels = large.batch(torch.tensor([1, 2]))
    assert images.device.type == labels.device.type == "meta"
    with pytest.raises(UserError, match="dataset.memory_gb=-1.0: allowed: 0"):
        load(path, tmp_path / "cache", memory_gb=-1.0)


GROWING_BATCH = {"schedule": {"batch_size": {"final": 14.0, "kind": "linear"}}}


@pytest.mark.parametrize(
    "name, options", [("lazy", {"micro_batch": 3}), ("clipped", {}), ("reusing", {"micro_batch": 5}), ("growing", GROWING_BATCH)]
)
def test_the_engine_announces_exactly_what_it_asks_for(name, options):
    engine = toy_run.build_engine(toys.values(name, **options))
    asked, real = [], engine.source.batch
    engine.source.batch = lambda indices: (asked.append(indices), real(indices))[1]
    coming = engine.coming()
    for step in range(5):
        if step == 3:
            rest, start = engine.coming(), len(asked)  # as a run that is resumed here
        engine.step()
    assert all(torch.equal(a, b) for a, b in zip(asked, coming, strict=False)) and len(asked) >= 10
    assert all(torch.equal(a, b) for a, b in zip(asked[start:], rest, strict=False))


def test_results_of_threads_do_not_pile_up():
    started, ahead = [], []
    for taken, _ in enumerate(decode.in_threads(started.append, range(60), workers=2), start=1):
        time.sleep(0.003)  # a slow disk
        ahead.append(len(started) - taken)
    assert len(started) == 60 and max(ahead) <= 4


def test_the_benchmark_lists_every_way_with_the_first_as_one(tmp_path, small):
    threads = torch.get_num_threads()
    options = benchmarks.data.Options(images=48, resolution=8, batch_size=4, workers=1, seconds=0.02, device="cpu")
    try:
        lines = benchmarks.data.table(*benchmarks.data.measure(options, tmp_path), options).splitlines()
    finally:
        torch.set_num_threads(threads)
    assert len(lines) == 9 and lines[1].endswith(" 1.0") and all("images/s" in line for line in lines[1:7])
    assert lines[7].startswith("first opening") and lines[8].startswith("second opening")
