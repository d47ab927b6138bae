"""Mode coverage: closed-form values, what may be measured on which data, and points through driver, pictures and scripts."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from PIL import Image
from sklearn.datasets import load_digits
from toy_checkpoint import save_toy

import data
import training.main
from data import DatasetOptions, DataSource, Spec
from data.points import GEOMETRIES, geometry
from data.stacked_digits import chosen
from errors import UserError
from metrics.extractors import Request, Unavailable, make
from metrics.modes import assigned, by_distance, mode_coverage, of_numbers
from metrics.score import METRICS, features_of, obstacle
from training.checkpoint import load
from training.cli import Arguments
from training.config import build_config
from training.draw import sample
from training.draws import latents
from training.evaluation import evaluator
from training.forms import save_scatter
from training.measure import measure
from training.processes import Processes
from training.sampling import grid_samples, load_gan

CPU = torch.device("cpu")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("training.trainer.plot_losses", lambda lines, path: Path(path).touch())  # half a second
    return tmp_path


def judge(name):
    source = data.build(DatasetOptions(name))
    return make(source.spec.name if name == "stacked_digits" else "points", Request(source, CPU)), source


def values_of(extractor, images):
    seen = features_of([extractor], len(images), lambda a, b: images[a:b])[extractor.name]
    return METRICS["modes"].compute(seen, seen, 0)


# closed form ----------------------------------------------------------------------------------------------------------


def test_coverage_of_counts_known_by_hand():
    logits = torch.full((8, 4), -9.0)
    logits[range(8), [0, 0, 0, 0, 2, 2, 3, 3]] = 0.0
    logits[6:] = -torch.inf  # two that belong nowhere
    assert assigned(logits).tolist() == [0, 0, 0, 0, 2, 2, -1, -1]
    covered, share, kl = mode_coverage(logits)
    assert (covered, share) == (2, 0.75)
    assert kl == pytest.approx(2 / 3 * math.log(4 * 2 / 3) + 1 / 3 * math.log(4 / 3))


def test_coverage_at_its_ends():
    even = torch.eye(5).repeat(3, 1)
    assert mode_coverage(even) == (5, 1.0, pytest.approx(0.0, abs=1e-12))
    assert mode_coverage(even[:1]) == (1, 1.0, pytest.approx(math.log(5)))
    covered, share, kl = mode_coverage(torch.full((3, 5), -torch.inf))
    assert (covered, share) == (0, 0.0) and math.isnan(kl)
    assert assigned(torch.full((1, 5), torch.nan)).tolist() == [-1]


def test_three_sigma():
    found = by_distance(torch.tensor([[2.9, 40.0], [3.1, 3.2], [1.0, 0.5]]))
    assert found[0].tolist() == [pytest.approx(-2.9), -40.0] and found[1].isneginf().all()
    assert assigned(found).tolist() == [0, -1, 1]


def test_numbers_of_digits():
    logits = torch.randn(4, 3, 10, generator=torch.Generator().manual_seed(0))
    found = of_numbers(logits)
    assert found.shape == (4, 1000) and torch.allclose(found.exp().sum(dim=1), torch.ones(4), atol=1e-5)
    assert torch.equal(found.argmax(dim=1), (logits.argmax(dim=2) * torch.tensor([100, 10, 1])).sum(dim=1))
    p = logits.softmax(dim=2)
    assert float(found[1, 407].exp()) == pytest.approx(float(p[1, 0, 4] * p[1, 1, 0] * p[1, 2, 7]), rel=1e-4)


@pytest.mark.parametrize("name", [*GEOMETRIES])
def test_samples_placed_on_known_modes(name):
    """Two on one mode, one on another, one far away, at 2 and 4 sigma from an anchor."""
    extractor, _ = judge(name)
    g = geometry(name)
    first, second = (g.mode_of == 1).nonzero()[0, 0], (g.mode_of == 4).nonzero()[0, 0]
    away = torch.tensor([1.0, 0.0]) if g.normals is None else g.normals[second]
    placed = [g.anchors[first], g.anchors[first], g.anchors[second] + 2 * g.sigma * away, g.anchors[second] + 4 * g.sigma * away]
    images = torch.stack(placed).view(4, 2, 1, 1)
    features, logits = extractor(images)
    assert torch.equal(features, images.flatten(1)) and logits.shape == (4, g.modes)
    assert assigned(logits).tolist() == [1, 1, 4, -1]
    assert float(logits[2, 4]) == pytest.approx(-2, abs=0.01)
    found = values_of(extractor, images)
    assert [*found] == ["modes_covered", "high_quality", "kl"]
    assert found["modes_covered"] == 2.0 and found["high_quality"] == 0.75
    assert found["kl"] == pytest.approx(math.log(g.modes) - math.log(3) + 2 / 3 * math.log(2))


@pytest.mark.parametrize(("name", "share"), [("ring", 0.9889), ("grid", 0.9889), ("swiss_roll", 0.9973)])
def test_real_points_score_like_a_perfect_model(name, share):
    extractor, source = judge(name)
    found = values_of(extractor, source.images[:10_000])
    assert found["modes_covered"] == extractor.modes and found["high_quality"] == pytest.approx(share, abs=0.004)
    assert 0 < found["kl"] < 4 * extractor.modes / (2 * 10_000)


def test_real_stacked_digits_cover_what_they_are():
    """The judge is 99 % right on each digit: coverage and KL are those of the labels' own counts, nearly."""
    extractor, source = judge("stacked_digits")
    images = source.images[:3000]
    features, logits = extractor(images[:5])
    assert features.shape == (5, 192) and logits.shape == (5, 1000)
    numbers = (torch.from_numpy(load_digits().target)[chosen()[:3000]] * torch.tensor([100, 10, 1])).sum(dim=1)
    assert (assigned(extractor(images)[1]) == numbers).double().mean() > 0.96
    found = values_of(extractor, images)
    assert [*found] == ["modes_covered", "kl"]
    shares = numbers.bincount(minlength=1000).double() / 3000
    own = float((shares[shares > 0] * (shares[shares > 0] * 1000).log()).sum())
    assert found["kl"] == pytest.approx(own, rel=0.05)
    assert found["modes_covered"] == pytest.approx(int((shares > 0).sum()), rel=0.02)
    ones = torch.stack([source.images[0]] * 7)
    assert values_of(extractor, ones) == {"modes_covered": 1.0, "kl": pytest.approx(math.log(1000))}


# what goes with what --------------------------------------------------------------------------------------------------


def test_offered_only_where_modes_are_known():
    points, stacked = judge("ring")[0], judge("stacked_digits")[0]
    plain = make("random", Request(data.build(DatasetOptions("digits")), CPU))
    assert obstacle("modes", points, False) is None and obstacle("modes", stacked, False) is None
    assert obstacle("modes", plain, False) == "metrics=modes needs data whose modes are known, and extractor=random knows none"
    assert obstacle("is", points, False) == "metrics=is needs class scores and extractor=points has none"
    assert obstacle("fid", points, False) is None


def test_points_and_images_are_told_apart():
    ring, digits = data.build(DatasetOptions("ring")), data.build(DatasetOptions("digits"))
    with pytest.raises(ValueError, match=r"wanted: float32 \(n, 2, H, W\); got torch.uint8"):
        make("points", Request(ring, CPU))(torch.zeros(2, 2, 1, 1, dtype=torch.uint8))
    for name in ("random", "inception", "digits"):
        with pytest.raises(Unavailable, match=f"extractor={name}: it looks at images and dataset=ring is points; use ext"):
            make(name, Request(ring, CPU))
    with pytest.raises(Unavailable, match="extractor=points: it looks at points and this data is images; use extractor=digits"):
        make("points", Request(digits, CPU))
    with pytest.raises(Unavailable, match="extractor=stacked_digits: it knows the modes of dataset=stacked_digits only"):
        make("stacked_digits", Request(digits, CPU))


def test_points_of_ones_own_have_coordinates_but_no_modes():
    source = DataSource(torch.zeros(4, 2, 1, 1), torch.full((4,), -1), Spec("mine", 1, 2, 0, kind="points"))
    extractor = make("points", Request(source, CPU))
    assert extractor(source.images)[1] is None and "knows none" in obstacle("modes", extractor, False)


# through the house ----------------------------------------------------------------------------------------------------


def options(dataset, **more):
    return toys.values("lazy", **{"dataset": {"name": dataset}, "eval": {"samples": 300}, "total_kimg": 0.024, **more})


@pytest.mark.parametrize("dataset", ["swiss_roll", "stacked_digits"])
def test_auto_measures_modes_during_training(dataset, here):
    assert training.main.train(options(dataset, run_dir="run"), Arguments()) == 0
    (line,) = [line for line in map(json.loads, open("run/log.jsonl")) if "eval/modes" in line]
    names = ["modes", "high_quality", "kl"] if dataset == "swiss_roll" else ["modes", "kl"]
    assert [name for name in line if name.startswith("eval/")] == [f"eval/{name}" for name in names]
    state = load(Path("run/checkpoints/best.pt"))
    assert state["best"]["name"] == "modes" and state["best"]["value"] == line["eval/modes"]
    assert state["spec"]["kind"] == ("points" if dataset == "swiss_roll" else "images")


def test_a_run_on_points_leaves_scatter_plots(here, capsys):
    assert training.main.train(options("ring", run_dir="run"), Arguments()) == 0
    for path in ("run/samples/kimg00000.png", "run/samples/kimg00000.024.png"):
        picture = Image.open(path)
        assert picture.size == (512, 512) and Path(path).stat().st_size < 100_000
    assert not Path("run/data.txt").exists()
    said = capsys.readouterr().out
    assert "lazy on ring (50,000 points, of the plane)" in said and "evaluation: modes covered (points), higher is better" in said
    assert said.count("; best") == 1 and "eval/high_quality" in said


def test_evaluate_by_modes_and_distance(here, capsys):
    save_toy(here / "run", options("grid"))
    content = {}
    for out, more in (("all.json", {}), ("floor.json", {"metrics": ["modes", "fid"], "compare": "train"})):
        assert measure({"checkpoint": "run", "device": "cpu", "samples": 2000, "out": out, **more}) == 0
        content[out] = json.loads(open(out).read())
    printed = capsys.readouterr().out
    assert "PUBLISHED" not in printed and "missing: modes" not in printed and "inception" not in printed
    (result,) = content["all.json"]["results"]
    assert {"modes", "fid", "kid", "pr", "dc"} == {s["metric"] for s in result["scores"]}
    assert content["all.json"]["extractors"]["points"]["sigma"] == geometry("grid").sigma
    floor, model = content["floor.json"]["results"]
    scores = {s["metric"]: s for s in floor["scores"]}
    assert scores["modes"]["values"]["modes_covered"] == 25 and scores["modes"]["protocol"]["modes"] == 25
    assert scores["fid"]["values"]["frechet"] < 1e-3
    assert next(s for s in model["scores"] if s["metric"] == "fid")["values"]["frechet"] > 1e-2
    assert model["of"]["pixels"] == "none, coordinates in fp32"


def test_samples_of_points_are_floats(here):
    save_toy(here / "run", options("ring"))
    assert sample({"checkpoint": "run", "n": 70, "out": "set.npz", "device": "cpu", "batch_size": 64}) == 0
    points = np.load("set.npz")["arr_0"]
    assert points.shape == (70, 2) and points.dtype == np.float32 and len(np.unique(points)) > 70
    gan = load_gan("run", CPU).gan
    assert np.allclose(points, gan.sample(latents(0, 0, 70, gan.z_dim)).flatten(1).numpy(), atol=1e-6)
    assert sample({"checkpoint": "run", "device": "cpu"}) == 0 and Image.open("sample.png").size == (512, 512)
    assert sorted(path.name for path in here.iterdir()) == ["run", "sample.png", "set.npz"]


@pytest.mark.parametrize(
    "act, message",
    [
        (lambda: sample({"checkpoint": "run", "out": "folder"}), "out=folder: a folder is for images, and this model makes"),
        (lambda: sample({"checkpoint": "run", "interpolate": [0, 1]}), "interpolate=[0, 1]: a walk is shown in images, and"),
        (lambda: measure({"checkpoint": "run", "neighbours": True}), "neighbours=true: a sheet shows images, and dataset"),
        (lambda: measure({"checkpoint": "run", "dataset": "digits"}), "dataset=digits: images, wanted: points"),
        (lambda: measure({"checkpoint": "run", "extractor": ["random"]}), "extractor=random: it looks at images and dataset"),
        (lambda: measure({"checkpoint": "run", "metrics": ["is"]}), "metrics=is needs class scores and extractor=points has"),
        (lambda: measure({"checkpoint": "run", "compare": "run"}), "compare=run: dataset=ring reads no files; compare=train"),
        (lambda: training.main.build(build_config(options("ring", augment={"name": "diffaugment"}))[0]),
         "augment=diffaugment: it changes images, and dataset=ring is points; use augment=none"),
    ],
)  # fmt: skip
def test_refused_in_one_line(here, act, message):
    save_toy(here / "run", options("ring"))
    with pytest.raises(UserError) as error:
        act()
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert [path.name for path in here.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("dataset", "given", "message"),
    [
        ("ring", {"extractor": "random"}, "eval.extractor=random: it looks at images and dataset=ring is points"),
        ("ring", {"metric": "is"}, "eval.metric=is needs class scores and eval.extractor=points has none"),
        ("toy", {"metric": "modes"}, "eval.metric=modes needs data whose modes are known, and eval.extractor=classifier knows"),
        ("toy", {"extractor": "points"}, "eval.extractor=points: it looks at points and this data is images"),
        ("stacked_digits", {"metric": "modes", "extractor": "random"}, "eval.metric=modes needs data whose modes are known"),
    ],
)
def test_refused_before_the_first_step(dataset, given, message):
    config, _ = build_config(options(dataset, eval={"samples": 30, **given}))
    source, gan = training.main.build(config)
    with pytest.raises(UserError) as error:
        evaluator(gan, source, config, Processes("cpu"))
    assert str(error.value).startswith(message)


def test_broken_points_are_no_number():
    config, _ = build_config(options("ring"))
    source, gan = training.main.build(config)
    measured = evaluator(gan, source, config, Processes("cpu"))
    assert set(measured(gan)) == {"modes", "high_quality", "kl"}
    with torch.no_grad():
        gan.generator[0].weight.fill_(torch.nan)
    assert math.isnan(measured(gan)["modes"])


def test_a_checkpoint_older_than_kinds_loads(here):
    path = save_toy(here / "run", options("toy")) / "checkpoints" / "kimg00000.pt"
    state = load(path)
    del state["spec"]["kind"]
    torch.save(state, path)
    assert load_gan(str(path), CPU).spec.kind == "images"
    assert measure({"checkpoint": str(path), "device": "cpu", "extractor": ["random"], "metrics": ["fid"]}) == 0


def test_pictures_of_points_show_more_than_a_grid_would(here):
    loaded = load_gan(str(save_toy(here / "run", options("ring"))), CPU)
    assert len(grid_samples(loaded.gan, loaded.spec, 0, 2, 3, CPU)[0]) == 2000
    images = load_gan(str(save_toy(here / "other", options("toy"))), CPU)
    assert len(grid_samples(images.gan, images.spec, 0, 2, 3, CPU)[0]) == 6


def test_scatter_shows_samples_over_real_points(tmp_path):
    spec = Spec("ring", 1, 2, 0, kind="points")
    one = save_scatter(tmp_path / "a" / "one.png", torch.zeros(1, 2, 1, 1), spec)
    picture = np.asarray(Image.open(one).convert("RGB")).astype(int)
    blue = (picture[..., 2] - picture[..., 0] > 60).nonzero()
    assert abs(blue[0].mean() - 0.475 * 512) < 4 and abs(blue[1].mean() - 0.54 * 512) < 4 and np.ptp(blue[0]) < 6
    faint = ((picture == (203, 213, 224)).all(axis=-1)).sum()
    assert faint > 200  # eight small clouds
    mine = save_scatter(tmp_path / "mine.png", torch.full((3, 2), torch.nan), Spec("mine", 1, 2, 0, kind="points"))
    assert Image.open(mine).size == (512, 512) and sorted(p.name for p in tmp_path.iterdir()) == ["a", "mine.png"]
