"""Evaluation during training: which measure, which way is up, the best checkpoint, and that training does not notice."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_extractor  # noqa: F401 (registers "tiny")
import torch
import toys

import data
import training.main
from data import DataSource
from errors import UserError
from training import evaluation
from training.checkpoint import load
from training.cli import Arguments
from training.config import build_config
from training.engine import Engine
from training.evaluation import Best, evaluator
from training.processes import Processes
from training.sampling import generate


def engine(name="lazy", dataset="toy", **options):
    config, _ = build_config(toys.values(name, dataset={"name": dataset}, eval={"samples": 30, **options}))
    config.schedule_kimg = config.total_kimg
    source, gan = training.main.build(config)
    return Engine(gan, source, config, Processes("cpu"))


def measure_of(engine):
    return evaluator(engine.gan, engine.source, engine.config, engine.processes, lambda text: None)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("metrics.classifier.IMAGES_SEEN", 400)
    monkeypatch.setattr("training.trainer.plot_losses", lambda lines, path: Path(path).touch())  # half a second

    def unlabelled(options):
        source = toys.toy_data(options)
        return DataSource(source.images, torch.full_like(source.labels, -1), replace(source.spec, classes=0))

    monkeypatch.setitem(data.DATASETS, "unlabelled", unlabelled)


# which measure --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dataset", "key", "higher"),
    [
        ("r3gan", "digits", "recognised", True),
        ("lazy", "digits", "frechet_digits", False),  # not class-conditional
        ("r3gan", "toy", "frechet_classifier", False),
        ("lazy", "unlabelled", "frechet_random", False),
    ],
)
def test_auto(name, dataset, key, higher):
    measure = measure_of(made := engine(name, dataset))
    assert (measure.name, measure.higher_is_better) == (key, higher)
    assert f"{'higher' if higher else 'lower'} is better" in measure.describe()
    (found,) = measure(made.ema_gan()).items()
    assert found[0] == key and math.isfinite(found[1])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"metric": "kid", "extractor": "random"}, "kid_random"),
        ({"metric": "recognised", "extractor": "classifier"}, "recognised"),
        ({"metric": "pr", "extractor": "tiny"}, "pr_tiny"),
        ({"metric": "fid", "extractor": "classifier"}, "frechet_classifier"),
    ],
)
def test_chosen(options, key):
    made = engine("r3gan", **options)
    assert [*measure_of(made)(made.ema_gan())] == [key]


def test_none():
    assert measure_of(engine(samples=0)) is None and measure_of(engine(metric="none")) is None


def test_models_without_latents_are_told():
    """Translation, for example."""

    class Translator:
        conditional = False

    made, said = engine(), []
    assert evaluator(Translator(), made.source, made.config, made.processes, said.append) is None
    assert len(said) == 1 and "does not sample from latents" in said[0]
    made = engine(metric="fid")
    with pytest.raises(UserError, match="eval.metric=fid: this model does not sample from latents"):
        evaluator(Translator(), made.source, made.config, made.processes)


@pytest.mark.parametrize(
    ("name", "dataset", "options", "message"),
    [
        ("lazy", "toy", {"metric": "fdi"}, "eval.metric=fdi: unknown, did you mean 'fid'?"),
        ("lazy", "toy", {"extractor": "tini"}, "extractor=tini: unknown, did you mean 'tiny'?"),
        ("lazy", "unlabelled", {"extractor": "classifier"}, "eval.extractor=classifier: it learns from labels"),
        ("lazy", "toy", {"metric": "intra"}, "eval.metric=intra needs labelled reference images and samples of given classes"),
        ("r3gan", "toy", {"metric": "is", "extractor": "random"}, "needs class scores and eval.extractor=random has none"),
        ("r3gan", "toy", {"metric": "recognised", "extractor": "digits"}, "needs an extractor that knows the data's classes"),
    ],
)
def test_refused_before_the_first_step(name, dataset, options, message):
    with pytest.raises(UserError) as error:
        measure_of(engine(name, dataset, **options))
    assert message in str(error.value)


# training does not notice ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reusing", "lazy"])
def test_flags_random_numbers_and_weights_stay(name):
    made = engine(name, extractor="random")
    made.step()
    measure = measure_of(made)
    torch.manual_seed(7)
    state, weights = torch.get_rng_state(), {k: v.clone() for k, v in made.gan.state_dict().items()}
    flags = [module.training for module in made.gan.modules()]
    measure(made.ema_gan())
    measure(made.gan)  # the networks being trained, in training mode
    assert torch.equal(torch.get_rng_state(), state)
    assert flags == [module.training for module in made.gan.modules()] and any(flags)
    assert all(torch.equal(weights[k], v) for k, v in made.gan.state_dict().items())  # BatchNorm statistics too


def test_it_is_in_evaluation_mode_and_repeatable():
    made = engine("reusing", extractor="random")
    made.step()
    measure = measure_of(made)
    assert measure(made.gan) == measure(made.gan)
    fresh = measure_of(made)(made.gan)  # reference from the cache
    assert fresh == measure(made.gan)
    z = torch.randn(4, made.gan.z_dim)
    assert torch.equal(next(generate(made.gan, z, None, torch.device("cpu"))), made.gan.eval().sample(z))


def test_a_run_with_and_without_evaluation_ends_the_same():
    weights = []
    for every in (0.0, 0.008):
        values = toys.values("reusing", run_dir=f"run{every}", eval={"samples": 20, "every_kimg": every, "extractor": "random"})
        assert training.main.train(values, Arguments()) == 0
        weights.append(load(training.checkpoint.find(f"run{every}"))["gan"])
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


# the best -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("higher", [True, False])
def test_best_goes_the_right_way(higher):
    best = Best("x", higher)
    assert str(best) == "none yet"
    assert [best.update(v, n) for n, v in enumerate([3.0, 3.0, 2.0, 4.0, math.nan, 1.0, 5.0])] == (
        [True, True, False, True, False, False, True] if higher else [True, True, True, False, False, True, False]
    )
    assert best.value == (5.0 if higher else 1.0) and best.images_seen == (6 if higher else 5)
    again = Best("x", higher)
    again.load(best.state())
    assert again == best
    other = Best("y", higher)
    other.load(best.state())
    other.load(None)
    assert other.value is None


def test_nan_first_is_not_the_best():
    best = Best("x", False)
    assert not best.update(math.nan, 0) and best.update(9.0, 1)


def test_a_run_keeps_the_lowest_distance(capsys):
    """best.pt is the checkpoint with the lowest logged distance, the log has all, the end says best and last."""
    values = toys.values(
        "lazy", run_dir="run", total_kimg=0.4, optim={"name": "adam", "lr": 0.05}, ema_half_life=0.0,
        eval={"samples": 25, "every_kimg": 0.08, "extractor": "random"}, checkpoint={"keep": 100},
    )  # fmt: skip
    assert training.main.train(values, Arguments()) == 0
    lines = [json.loads(line) for line in open("run/log.jsonl")]
    found = {line["images_seen"]: line["eval/frechet_random"] for line in lines if "eval/frechet_random" in line}
    assert len(found) == 5
    lowest = min(found, key=found.get)
    best = load(Path("run/checkpoints/best.pt"))
    assert best["clock"]["images_seen"] == lowest
    state = load(training.checkpoint.find("run"))
    assert state["best"] == {"name": "frechet_random", "value": found[lowest], "images_seen": lowest}
    printed = capsys.readouterr().out
    assert "evaluation: Frechet distance (random), lower is better" in printed
    said = f"(25 samples, EMA weights; best {found[lowest]:.4f} at {lowest / 1000:g} kimg)"
    assert f"eval/frechet_random: {found[max(found)]:.4f} {said}" in printed


def test_resume_goes_on_with_the_best(capsys):
    def run(total, **more):
        values = toys.values("lazy", total_kimg=total, schedule_kimg=0.4, optim={"name": "adam", "lr": 0.05}, ema_half_life=0.0,
                             eval={"samples": 25, "every_kimg": 0.08, "extractor": "random"}, **more)  # fmt: skip
        explicit = ["total_kimg", "resume"] if "resume" in more else []
        assert training.main.train(values, Arguments(explicit=explicit)) == 0
        return load(training.checkpoint.find(more.get("run_dir") or more["resume"]))["best"]

    whole = run(0.4, run_dir="whole")
    first = run(0.16, run_dir="parts")
    second = run(0.4, resume="parts")
    assert second == whole and first["value"] >= second["value"]

    path = Path("parts/checkpoints/latest.pt")
    unbeatable = {**load(path), "best": {"name": "frechet_random", "value": -1.0, "images_seen": 8}}
    torch.save(unbeatable, path)
    before = load(Path("parts/checkpoints/best.pt"))["clock"]
    assert run(0.48, resume="parts") == unbeatable["best"]
    assert load(Path("parts/checkpoints/best.pt"))["clock"] == before


def test_broken_samples_do_not_stop_training():
    made = engine(extractor="random")
    measure = measure_of(made)
    with torch.no_grad():
        made.gan.generator[0].weight.fill_(torch.nan)
    assert math.isnan(measure(made.gan)["frechet_random"])


def test_too_few_samples_are_said():
    made, said = engine(samples=1, extractor="random"), []
    measure = evaluator(made.gan, made.source, made.config, made.processes, said.append)
    assert math.isnan(measure(made.gan)["frechet_random"])
    assert said == ["no evaluation: a covariance needs at least 2 images, got 1"]


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path):
    """Samples are shared, numbers agree, both end well, and only one writes."""
    import toy_run

    found = []
    for processes in (1, 2):
        values = toys.values(
            "reusing", run_dir=str(tmp_path / str(processes)), total_kimg=0.016,
            eval={"samples": 31, "every_kimg": 0.008, "extractor": "classifier", "cache": str(tmp_path / f"cache{processes}")},
        )  # fmt: skip
        output = tmp_path / f"out{processes}"
        group = toy_run.start("train", {"values": values}, output, processes)
        assert toy_run.wait(group, 300) == [0] * processes, output.read_text()
        lines = [json.loads(line) for line in open(tmp_path / str(processes) / "log.jsonl")]
        found.append([line["eval/frechet_classifier"] for line in lines if "eval/frechet_classifier" in line])
        assert output.read_text().count("training a classifier") == 1
    assert len(found[0]) == 2
    assert found[0][0] == pytest.approx(found[1][0], rel=0.2)  # BatchNorm sees half batches, so weights differ a little


def test_the_reference_is_a_part_of_large_data(monkeypatch):
    monkeypatch.setattr(evaluation, "REFERENCE_IMAGES", 20)
    measure = measure_of(made := engine(extractor="random"))
    measure(made.gan)
    assert measure._reference().statistics.n == 20
