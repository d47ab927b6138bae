"""evaluate.py: numbers with their whole protocol, the floor, curves, and refusals in one line."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_extractor  # noqa: F401 (registers "tiny")
import torch
import toys
from PIL import Image
from toy_checkpoint import save_toy

import data
from data import DatasetOptions, DataSource, Spec
from data.source import to_float
from errors import UserError
from metrics.distances import frechet, statistics
from metrics.extractors import Request, make
from training import measure as measure_module
from training.checkpoint import load
from training.cli import simple_main
from training.draws import latents
from training.evaluation import data_labels
from training.measure import measure
from training.pictures import ImageFolderWriter
from training.sampling import generate, load_gan


def skewed(options, split="train", changed=0):
    """40 or 24 gray images of 8 px in three classes of very different sizes; ``changed`` moves a pixel."""
    n, rng = {"train": (40, 1), "test": (24, 2)}[split]
    images = torch.randint(40, 200, (n, 1, 8, 8), generator=torch.Generator().manual_seed(rng), dtype=torch.uint8)
    labels = torch.tensor([0] * (n // 2) + [1] * (n // 4) + [2] * (n - n // 2 - n // 4))
    images[:, :, :, :4] //= (labels + 1)[:, None, None, None].to(torch.uint8)
    images[0, 0, 0, 0] += changed
    return DataSource(images, labels, Spec(options.name, 8, 1, 3))


def unlabelled(options):
    source = skewed(options)
    return DataSource(source.images, torch.full_like(source.labels, -1), replace(source.spec, classes=0))


def coloured(options):
    return DataSource(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), torch.arange(40) % 3, Spec(options.name, 8, 3, 3))


@pytest.fixture(autouse=True)
def datasets(monkeypatch):
    for name, build in {"skewed": skewed, "unlabelled": unlabelled, "coloured": coloured}.items():
        monkeypatch.setitem(data.DATASETS, name, build)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A conditional model in three stages, each further from what it was made as."""
    data.DATASETS["skewed"] = skewed
    try:
        folder = tmp_path_factory.mktemp("runs") / "r3gan-skewed-0"
        for kimg in (0, 8, 16):
            save_toy(folder, toys.values("r3gan", dataset={"name": "skewed"}), 1000 * kimg, spread=0.1 + 0.02 * kimg)
        return folder
    finally:
        del data.DATASETS["skewed"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scored(run, out="out.json", **more):
    """(exit status, the JSON)."""
    options = {"checkpoint": run and str(run), "device": "cpu", "extractor": ["tiny"], "out": out, **more}
    status = measure({name: value for name, value in options.items() if value is not None})
    return status, json.loads(open(out).read())


def value_of(content, name, result=-1):
    return next(s["values"][name] for s in content["results"][result]["scores"] if name in s["values"])


# the numbers ----------------------------------------------------------------------------------------------------------


def test_a_number_carries_its_protocol(run, here, capsys):
    status, content = scored(run, samples=30, seed=5)
    assert status == 0 and content["format"] == "gan-zoo evaluation 1"
    reference, of = content["reference"], content["results"][0]["of"]
    source = skewed(DatasetOptions("skewed"))
    assert reference["data_hash"] == source.content_hash and reference["split"] == "train"
    assert (reference["images"], reference["of"], reference["resolution"], reference["channels"]) == (40, 40, 8, 1)
    assert reference["resizer"] == "none" and content["extractors"]["tiny"]["resizer"] and content["missing"] == {
        "recognised": "metrics=recognised needs an extractor that knows the data's classes, and extractor=tiny does not"}
    assert len(content["extractors"]["tiny"]["weights_hash"]) == 64 and content["extractors"]["tiny"]["layer"] == "body"
    assert of["trained_on"] == source.content_hash
    assert of["kimg"] == 16 and of["weights"] == "ema" and of["seed"] == 5 and of["count"] == 30
    assert "running statistics" in of["batch_norm"] and "drawn without replacement" in of["labels"] and of["gan"] == "r3gan"
    assert content["versions"]["torch-fidelity"] and content["versions"]["torch"] == torch.__version__
    kid = next(s for s in content["results"][0]["scores"] if s["metric"] == "kid")
    assert kid["protocol"]["subset_size"] == 15 and kid["better"] == "lower" and kid["name"] == "kernel distance (tiny)"
    printed = capsys.readouterr().out
    assert "r3gan at 16 kimg" in printed and "30 images each, against 40 of skewed (train" in printed and "out.json" in printed
    assert "frechet" in printed and "FID" not in printed  # that name is Inception's


@pytest.mark.parametrize("batch_size", [1, 7])
def test_batch_size_changes_nothing(run, here, batch_size):
    whole, cut = scored(run, metrics=["fid", "kid", "is", "dc"], batch_size=50)[1], scored(
        run, metrics=["fid", "kid", "is", "dc"], batch_size=batch_size)[1]
    for name in ("frechet", "kid", "is", "density"):
        assert value_of(cut, name) == pytest.approx(value_of(whole, name), rel=1e-4, abs=1e-4)


def test_samples_are_those_of_the_command_line_tools(run, here, monkeypatch):
    """The distance is that of files written with the same draws, scored by torch-fidelity itself."""
    from torch_fidelity import calculate_metrics

    seen = {}
    keep = measure_module.features_of

    def watched(extractors, n, images_at, *rest):
        seen["images"] = torch.cat([images_at(i, i + 1) for i in range(n)])
        return keep(extractors, n, images_at, *rest)

    monkeypatch.setattr(measure_module, "features_of", watched)
    content = scored(run, metrics=["fid"], seed=3)[1]
    gan = load_gan(str(run), torch.device("cpu")).gan
    labels = data_labels(skewed(DatasetOptions("skewed")), 3, 40)
    drawn = torch.cat(list(generate(gan, latents(3, 0, 40, gan.z_dim), labels, torch.device("cpu"))))
    assert (seen["images"].int() - data.to_uint8(drawn).int()).abs().max() <= 1  # 8 bits, as in files
    for name, images in (("fake", seen["images"]), ("real", skewed(DatasetOptions("skewed")).images)):
        with ImageFolderWriter(here / name) as writer:
            writer.write(images.permute(0, 2, 3, 1).numpy())
    theirs = calculate_metrics(
        input1=str(here / "fake"), input2=str(here / "real"), feature_extractor="tiny", fid=True, cuda=False, cache=False,
        verbose=False, save_cpu_ram=True,
    )  # fmt: skip
    assert value_of(content, "frechet") == pytest.approx(theirs["frechet_inception_distance"], rel=1e-5, abs=1e-5)


def test_labels_are_distributed_as_in_the_data(run, here, monkeypatch):
    counts, keep = [], measure_module.features_of

    def watched(extractors, n, images_at, labels, *rest):
        counts.append(labels.bincount().tolist())
        return keep(extractors, n, images_at, labels, *rest)

    monkeypatch.setattr(measure_module, "features_of", watched)
    scored(run, metrics=["fid"])
    assert counts == [[20, 10, 10]]  # as many samples as images: exactly theirs


def test_a_reference_without_labels_for_a_model_with_classes(run, here, monkeypatch):
    counts, keep = [], measure_module.features_of

    def watched(extractors, n, images_at, labels, *rest):
        counts.append(labels.bincount().tolist())
        return keep(extractors, n, images_at, labels, *rest)

    monkeypatch.setattr(measure_module, "features_of", watched)
    content = scored(run, dataset="unlabelled", samples=30)[1]
    assert counts == [[10, 10, 10]] and "since the reference has no labels" in content["results"][0]["of"]["labels"]
    assert content["results"][0]["of"]["trained_on"] != content["reference"]["data_hash"] and "intra" in content["missing"]


def test_ema_and_raw_weights_and_seeds_differ(here):
    data.DATASETS["skewed"] = skewed
    folder = save_toy(here / "run", toys.values("r3gan", dataset={"name": "skewed"}, optim={"name": "adam", "lr": 0.05}), steps=2)
    found = {
        (weights, seed): value_of(scored(folder, metrics=["fid"], weights=weights, seed=seed)[1], "frechet")
        for weights, seed in (("ema", 0), ("raw", 0), ("ema", 1))
    }
    assert len(set(found.values())) == 3
    assert value_of(scored(folder, metrics=["fid"])[1], "frechet") == found["ema", 0]


def test_reference_follows_the_data_not_its_name(run, here, monkeypatch):
    first = scored(run, metrics=["fid"])[1]
    again = scored(run, metrics=["fid"])[1]
    assert value_of(first, "frechet") == value_of(again, "frechet") and len(list((here / "cache").glob("reference-tiny-*"))) == 1
    monkeypatch.setitem(data.DATASETS, "skewed", lambda options: skewed(options, changed=50))
    other = scored(run, metrics=["fid"])[1]
    assert other["reference"]["data_hash"] != first["reference"]["data_hash"]
    assert value_of(other, "frechet") != value_of(first, "frechet")


def test_default_extractor_is_said_loudly(run, here, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(here))
    monkeypatch.setattr("metrics.classifier.IMAGES_SEEN", 400)
    status, content = scored(run, extractor=None)
    printed = capsys.readouterr().out
    assert status == 0 and "NOT THE PUBLISHED METRICS: without Inception's weights" in printed
    assert "missing: inception: no weights at hand (inception_weights=FILE" in printed and "extractor=classifier" in printed
    assert set(content["missing"]) == {"inception", "vgg16"}
    assert 0 <= content["extractors"]["classifier"]["held_out_accuracy"] <= 1 and "held-out images" in printed
    assert {s["metric"] for s in content["results"][0]["scores"]} == {"fid", "kid", "is", "pr", "dc", "intra", "recognised"}
    intra = next(s["values"] for s in content["results"][0]["scores"] if s["metric"] == "intra")
    assert len(intra["per_class"]) == 3


def test_several_extractors_and_one_that_is_missing(run, here, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(here))

    def offline(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    content = scored(run, extractor=["tiny", "vgg16", "random"], metrics=["fid", "is"])[1]
    assert [(s["metric"], s["extractor"]) for s in content["results"][0]["scores"]] == [
        ("fid", "tiny"), ("fid", "random"), ("is", "tiny")]  # fmt: skip
    assert "vgg16-397923af.pth is not here and cannot be downloaded" in content["missing"]["vgg16"]


# the floor, many checkpoints, copies -----------------------------------------------------------------------------------


def test_floor_of_the_test_split(run, here, capsys):
    content = scored(run, compare="test", metrics=["fid", "kid"], samples=20)[1]
    floor, model = content["results"]
    assert floor["title"] == "real images (test)" and floor["of"]["of"] == 24 and floor["of"]["count"] == 20
    assert floor["of"]["data_hash"] == skewed(DatasetOptions("skewed"), "test").content_hash
    assert value_of(content, "frechet", 0) < value_of(content, "frechet", 1)
    tiny = make("tiny", Request(None, torch.device("cpu")))
    train, test = (skewed(DatasetOptions("skewed"), split) for split in ("train", "test"))
    all_of_it = scored(run, compare="test", metrics=["fid"], samples=24)[1]
    wanted = frechet(statistics(tiny(test.images)[0]), statistics(tiny(train.images)[0]))
    assert value_of(all_of_it, "frechet", 0) == pytest.approx(wanted, rel=1e-4)
    alone = scored(None, dataset="skewed", compare="test", samples=20, metrics=["fid"])[1]
    assert value_of(alone, "frechet") == value_of(content, "frechet", 0)
    identical = scored(None, dataset="skewed", compare="train", metrics=["fid"])[1]
    assert value_of(identical, "frechet") == pytest.approx(0, abs=1e-6)


def test_reference_is_the_test_split_if_asked(run, here):
    content = scored(run, split="test", metrics=["fid"])[1]
    assert content["reference"]["images"] == 24 and content["reference"]["split"] == "test"
    assert content["results"][0]["of"]["count"] == 24


def test_compare_with_a_path(here):
    from zipfile import ZipFile

    rng = torch.Generator().manual_seed(0)
    for name in ("a", "b"):
        with ZipFile(here / f"{name}.zip", "w") as archive:
            for i in range(12):
                pixels = torch.randint(255, (8, 8, 3), generator=rng, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(here / "x.png")
                archive.write(here / "x.png", f"{i:02d}.png")
    of = {"dataset": "zip", "dataset.path": str(here / "a.zip")}
    content = scored(None, **of, compare=str(here / "b.zip"), metrics=["fid"])[1]
    assert content["reference"]["path"] == str(here / "a.zip") and value_of(content, "frechet") > 0.01
    with pytest.raises(UserError, match="compare=.*c.zip: no such file or folder; wanted: train, test, or a path"):
        scored(None, **of, compare=str(here / "c.zip"))


def test_all_checkpoints_give_a_curve(run, here):
    status, content = scored(run, all=True, compare="test", metrics=["fid", "pr"], samples=20)
    assert [result["of"].get("kimg") for result in content["results"]] == [None, 0, 8, 16]
    assert len({value_of(content, "frechet", i) for i in range(4)}) == 4
    with Image.open(here / "out.png") as picture:
        assert picture.width > 500
    assert not list(here.glob(".*.tmp"))


def test_default_places_beside_the_checkpoint(run, here):
    measure({"checkpoint": str(run), "device": "cpu", "extractor": ["tiny"], "metrics": ["fid"], "samples": 10})
    measure({"checkpoint": str(run), "device": "cpu", "extractor": ["tiny"], "metrics": ["fid"], "samples": 10, "all": True})
    assert (run / "checkpoints" / "kimg00016-eval-ema-10.json").is_file()
    assert (run / "eval-ema-10.json").is_file() and (run / "eval-ema-10.png").is_file()


def test_neighbours_show_a_model_that_copies(run, here, monkeypatch):
    train = skewed(DatasetOptions("skewed")).images
    honest = scored(run, metrics=["fid"], neighbours=True)[1]["results"][0]["neighbours"]
    monkeypatch.setattr(measure_module.Samples, "__call__", lambda self, first, last: train[first:last])
    copies = scored(run, metrics=["fid"], neighbours=True)[1]["results"][0]["neighbours"]
    assert copies["median_distance_ratio"] < 1e-3 < 0.5 < honest["median_distance_ratio"]
    assert max(copies["distances"]) < 1e-3 and len(copies["samples"]) == 8
    with Image.open(here / "out-neighbours.png") as picture:
        assert picture.height > picture.width / 2


def test_nothing_of_the_caller_changes(run, here):
    torch.manual_seed(9)
    state, threads, grad = torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled()
    scored(run, metrics=["fid"], neighbours=True)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads and torch.is_grad_enabled() == grad


# refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"metrics": ["fdi"]}, "metrics=fdi: unknown, did you mean 'fid'?"),
        ({"samples": 41}, "samples=41: more than the 40 reference images; at most samples=40"),
        ({"samples": 30, "reference": 20}, "samples=30: more than the 20 reference images; at most samples=20"),
        ({"reference": 50}, "reference=50: the reference has 40 images"),
        ({"samples": 1}, "samples=1: must be at least 2"),
        ({"samples": 30, "compare": "test"}, "samples=30: compare=test has 24 images; at most samples=24"),
        ({"extractor": ["tini"]}, "extractor=tini: unknown, did you mean 'tiny'?"),
        ({"extractor": ["random"], "metrics": ["is"]}, "metrics=is needs class scores and extractor=random has none"),
        ({"metrics": ["recognised"]}, "metrics=recognised needs an extractor that knows the data's classes"),
        ({"dataset": "unlabelled", "metrics": ["intra"]}, "metrics=intra needs labelled reference images"),
        ({"dataset": "unlabelled", "extractor": ["classifier"]}, "extractor=classifier: it learns from labels"),
        ({"dataset": "coloured"}, "dataset=coloured: images of 8 px and 3 channels, wanted: 8 px and 1;"),
        ({"dataset": "nothing"}, "dataset=nothing: unknown dataset, allowed:"),
        ({"dataset.pth": "x"}, "dataset.pth: unknown option, did you mean 'path'?"),
        ({"dataset": "unlabelled", "split": "test"}, "split=test: dataset=unlabelled is one set here, without a test part"),
        ({"dataset": "unlabelled", "compare": "test"}, "compare=test: dataset=unlabelled is one set here"),
        ({"split": "val"}, "split=val: unknown, allowed: test, train"),
        ({"weights": "average"}, "weights=average: unknown, allowed: ema, raw"),
        ({"batch_size": 0}, "batch_size=0: must be at least 1"),
        ({"out": "w/x/x.json"}, "out=w/x/x.json: cannot write there (Not a directory); give another out=FILE.json"),
        ({"out": "folder.json"}, "out=folder.json: cannot write there (it is a folder); give another out=FILE.json"),
        ({"out": "x.txt"}, "out=x.txt: a name ending in .json is expected"),
        ({"checkpoint": None}, "checkpoint: not given"),
        ({"checkpoint": None, "compare": "test"}, "checkpoint: not given; without it dataset=<name> and dataset.path=… are"),
        ({"checkpoint": "nowhere"}, "nowhere: no such file or folder"),
        ({"sample": 3}, "sample: unknown option, did you mean 'samples'?"),
        ({"inception_weights": "x.pth"}, "inception_weights: given, but extractor=tiny does not use it; add inception"),
        ({"extractor": ["inception"], "inception_weights": "x.pth"}, "inception_weights=x.pth: no such file; wanted: weights"),
        ({"device": "cudda"}, "device=cudda: unknown device"),
    ],
)
def test_refused_in_one_line(run, here, more, message, monkeypatch):
    monkeypatch.setattr(measure_module, "features_of", lambda *_: pytest.fail("computed"))
    (here / "w").touch()
    (here / "folder.json").mkdir()
    with pytest.raises(UserError) as error:
        scored(run, **more)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (here / "out.json").exists()


def test_corrupt_weights_are_refused_by_their_hash(run, here):
    (here / "w.pth").write_bytes(b"not these")
    with pytest.raises(UserError, match="inception_weights=w.pth: corrupt or another file, its SHA-256 is .* has 6726825d…"):
        scored(run, extractor=["inception"], inception_weights="w.pth")


def test_too_few_images_for_a_metric(run, here, capsys):
    content = scored(run, samples=6)[1]  # three images a class or fewer; precision needs more than three, a score ten
    assert "missing" in next(s for s in content["results"][0]["scores"] if s["metric"] == "is")
    printed = capsys.readouterr().out
    assert "missing: inception score (tiny): the inception score needs at least 10 images, got 6" in printed
    assert "frechet" in printed
    with pytest.raises(UserError, match="metrics=is: the inception score needs at least 10 images, got 6"):
        scored(run, samples=6, metrics=["is"])


def test_all_needs_a_run_folder(run, here):
    with pytest.raises(UserError, match="all=true needs a run folder"):
        scored(run / "checkpoints" / "latest.pt", all=True)


def test_broken_weights_are_no_number(here):
    data.DATASETS["skewed"] = skewed
    folder = save_toy(here / "run", toys.values("r3gan", dataset={"name": "skewed"}))
    path = folder / "checkpoints" / "kimg00000.pt"
    state = load(path)
    next(t for t in state["ema"]["generator"].values() if t.is_floating_point()).fill_(torch.nan)
    torch.save(state, path)
    with pytest.raises(UserError, match="kimg00000.pt: 40 of 40 samples have pixels that are not finite; the ema"):
        scored(path, metrics=["fid"])


def test_command_line(run, here, capsys):
    def words(*more):
        return simple_main(measure, lambda: "usage", [f"checkpoint={run}", "device=cpu", *more])

    assert words("metrics=[fid,kid]", "extractor=tiny", "samples=12", "dataset.xflip=true", "out=a.json") == 0
    assert words("metrics=fid,kid", "extractor=[tiny]", "samples=12", "out=b.json", "cache=010") == 0
    a, b = (json.loads((here / f"{name}.json").read_text())["results"] for name in "ab")
    assert a == b and (here / "010").is_dir()
    assert words("metrics=fdi") == 2 and "error: metrics=fdi: unknown" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_share_the_sampling(tmp_path):
    """evaluate.py in a group of two gives the numbers of one process, once."""
    root = Path(__file__).resolve().parent.parent
    folder = save_toy(tmp_path / "run", toys.values("r3gan", dataset={"name": "digits"}), spread=0.2)
    texts = []
    for count in (1, 2):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = str(s.getsockname()[1])
        words = [f"checkpoint={folder}", "samples=1101", "extractor=random", "metrics=fid,kid", "compare=train", "device=cpu",
                 f"out={count}.json", f"cache=cache{count}"]  # fmt: skip
        group = []
        for rank in range(count):
            several = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
            several |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **(several if count > 1 else {})}
            group.append(subprocess.Popen(
                [sys.executable, root / "evaluate.py", *words], cwd=tmp_path, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            ))  # fmt: skip
        texts.append([process.communicate(timeout=500)[0] for process in group])
        assert [process.returncode for process in group] == [0] * count, texts[-1]
    one, two = (json.loads((tmp_path / f"{count}.json").read_text()) for count in (1, 2))
    assert two["processes"] == 2 and "images each" in texts[1][0] and "images each" not in texts[1][1]
    for result in (0, 1):
        for name in ("frechet", "kid"):
            assert value_of(two, name, result) == pytest.approx(value_of(one, name, result), rel=1e-4, abs=1e-5)


def test_images_are_rounded_to_eight_bits():
    images = torch.tensor([-1.2, -1.0, 0.0, 0.999, 1.2]).view(1, 1, 1, 5)
    assert data.to_uint8(images).flatten().tolist() == [0, 0, 128, 255, 255]
    assert to_float(data.to_uint8(images)).abs().max() == 1
