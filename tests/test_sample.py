"""sample.py: the same seed, the same pictures, in every form; and what it refuses."""

from __future__ import annotations

import json
import shutil

import command
import numpy as np
import pytest
import torch
from command import refused, tree
from PIL import Image

from training import cli
from training.draws import latents
from training.pictures import grid, to_uint8
from training.sampling import generate, load_gan

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of two finished runs, conditional and not, whose EMA and raw weights differ; tests only read them."""
    folder = tmp_path_factory.mktemp("runs")
    data = command.make_zip(folder / "data.zip", 16)
    learning = ("optim.lr=0.01", "total_kimg=0.024", "ema_half_life=0.05", "schedule.ema_half_life=null")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.trainer.plot_losses", lambda lines, path: None)
        assert command.train(f"run_dir={folder / 'digits'}", "eval.samples=0", *learning) == 0
        assert command.train(f"run_dir={folder / 'zip'}", "dataset=zip", f"dataset.path={data}", *learning) == 0
    return {"digits": folder / "digits", "zip": folder / "zip"}


def drawn(*options):
    """arr_0 and the labels, if any, of ``sample.py … out=x.npz``."""
    assert command.sample(*options, "out=x.npz") == 0
    with np.load("x.npz") as archive:
        return archive["arr_0"], archive["arr_1"] if "arr_1" in archive.files else None


def close(a, b):
    """Alike within one of 255 levels."""
    return a.shape == b.shape and np.abs(a.astype(int) - b.astype(int)).max() <= 1


@pytest.mark.parametrize("name", ["digits", "zip"])
def test_images_are_a_function_of_seed_and_number(runs, name):
    whole, labels = drawn(f"checkpoint={runs[name]}", "n=9", "seed=5")
    assert whole.dtype == np.uint8 and whole.shape == (9, 16, 16, 3) and whole.std(axis=0).max() > 2
    assert (labels is None) == (name == "zip")
    for batch_size in (1, 3, 64):
        again, same = drawn(f"checkpoint={runs[name]}", "n=9", "seed=5", f"batch_size={batch_size}")
        assert close(again, whole) and (labels is None or np.array_equal(same, labels))
    fewer, _ = drawn(f"checkpoint={runs[name]}", "n=4", "seed=5")
    assert close(fewer, whole[:4])
    other, _ = drawn(f"checkpoint={runs[name]}", "n=9", "seed=6")
    assert not close(other, whole)


def test_labels(runs):
    run = f"checkpoint={runs['digits']}"
    images, labels = drawn(run, "n=12")
    assert labels.tolist() == [*range(10), 0, 1]  # all classes in turn
    chosen, labels = drawn(run, "n=5", "labels=3,7")
    assert labels.tolist() == [3, 7, 3, 7, 3]
    again, labels = drawn(run, "n=5", "labels=[3,7]")
    assert labels.tolist() == [3, 7, 3, 7, 3] and close(again, chosen)
    only, labels = drawn(run, "n=8", "labels=3")
    assert labels.tolist() == [3] * 8 and close(only[:1], chosen[:1]) and close(only[3:4], images[3:4])
    assert not close(only[:1], images[:1])  # another label is another image


def test_a_grid_has_a_row_for_each_class(runs, capsys):
    for options, chosen, columns in (([], range(10), 2), (["labels=7,3"], (7, 3), 8), (["labels=4", "n=3"], (4,), 3)):
        options = options if "n=3" in options else [*options, "n=16"]
        assert command.sample(f"checkpoint={runs['digits']}", *options, "out=deep/er/grid.png") == 0
        gan = load_gan(str(runs["digits"]), CPU).gan
        labels = torch.tensor([label for label in chosen for _ in range(columns)])
        images = torch.cat(list(generate(gan, latents(0, 0, len(labels), gan.z_dim), labels, CPU)))
        expected = grid(images, columns, row_titles=[str(label) for label in chosen])
        assert close(np.asarray(Image.open("deep/er/grid.png")), np.asarray(expected))
        assert f"{len(labels)} images at 0.024 kimg (ema weights, seed 0): deep/er/grid.png" in capsys.readouterr().out


def test_a_grid_of_an_unconditional_model(runs, here):
    assert command.sample(f"checkpoint={runs['zip']}", "n=10", "seed=2") == 0
    gan = load_gan(str(runs["zip"]), CPU).gan
    images = torch.cat(list(generate(gan, latents(2, 0, 10, gan.z_dim), None, CPU)))
    assert close(np.asarray(Image.open("sample.png")), np.asarray(grid(images, 3)))
    assert tree(here) == ["sample.png"]


def test_a_folder_of_images(runs, here):
    whole, labels = drawn(f"checkpoint={runs['digits']}", "n=12")
    assert command.sample(f"checkpoint={runs['digits']}", "n=12", "batch_size=5", "out=images") == 0
    files = [f"img{i:08d}.png" for i in range(12)]
    assert tree(here / "images") == ["dataset.json", *files]
    assert json.loads((here / "images/dataset.json").read_text()) == {"labels": [[f, int(n)] for f, n in zip(files, labels)]}
    pixels = np.stack([np.asarray(Image.open(here / "images" / file)) for file in files])
    assert close(pixels, whole[..., 0])  # gray stays gray
    assert command.sample(f"checkpoint={runs['zip']}", "n=2", "out=plain") == 0
    assert tree(here / "plain") == files[:2]


def test_averaged_or_raw_weights(runs):
    state = torch.load(runs["zip"] / "checkpoints" / "latest.pt", weights_only=True)
    expected = {}
    for weights in ("ema", "raw"):
        gan = load_gan(str(runs["zip"]), CPU, weights).gan
        own = {k.removeprefix("generator."): v for k, v in state["gan"].items() if k.startswith("generator.")}
        theirs = state["ema"]["generator"] if weights == "ema" else own
        assert all(torch.equal(value, theirs[name]) for name, value in gan.generator.state_dict().items())
        with torch.no_grad():
            expected[weights] = to_uint8(gan.generator(latents(0, 0, 4, gan.z_dim)))
        assert close(drawn(f"checkpoint={runs['zip']}", "n=4", f"weights={weights}")[0], expected[weights])
    assert not close(expected["ema"], expected["raw"])
    assert close(drawn(f"checkpoint={runs['zip']}", "n=4")[0], expected["ema"])  # the default


def test_a_checkpoint_is_all_it_needs(runs, here, monkeypatch):
    """A run folder, any of its files, the best one, or a copy somewhere else without its data."""
    run = runs["zip"]
    whole, _ = drawn(f"checkpoint={run}", "n=3")
    shutil.copy(run / "checkpoints" / "latest.pt", here / "copy.pt")
    (here / "run/checkpoints").mkdir(parents=True)
    shutil.copy(run / "checkpoints" / "latest.pt", here / "run/checkpoints/best.pt")
    monkeypatch.setattr("data.build", None)
    for path in (
        run / "checkpoints" / "latest.pt",
        run / "checkpoints" / "kimg00000.024.pt",
        "copy.pt",
        "run/checkpoints/best.pt",
    ):
        assert close(drawn(f"checkpoint={path}", "n=3")[0], whole)
    first, _ = drawn(f"checkpoint={run / 'checkpoints' / 'kimg00000.pt'}", "n=3")
    assert not close(first, whole)


def test_generate_restores_training_flags(runs):
    gan = load_gan(str(runs["digits"]), CPU).gan.train()
    gan.generator.stages[0].eval()
    flags = [module.training for module in gan.modules()]
    seen = []
    hook = gan.generator.register_forward_hook(lambda module, *_: seen.append([m.training for m in module.modules()]))
    z, labels = latents(0, 0, 5, gan.z_dim), torch.arange(5)
    whole = torch.cat(list(generate(gan, z, labels, CPU, 2)))
    assert [module.training for module in gan.modules()] == flags and not any(map(any, seen)) and len(seen) == 3
    images = generate(gan, z, labels, CPU, 2)
    next(images)
    images.close()  # a reader who has had enough
    assert [module.training for module in gan.modules()] == flags
    hook.remove()
    assert whole.shape == (5, 1, 16, 16) and whole.dtype == torch.float32 and whole.is_contiguous() and not whole.requires_grad
    with pytest.raises(ValueError, match="latents"):
        list(generate(gan, z[:, 1:], labels, CPU))
    assert [module.training for module in gan.modules()] == flags


def test_help(capsys):
    for usage in ("how to", lambda: "how to"):
        assert cli.simple_main(None, usage, ["n=3", "--help"]) == 0
        assert capsys.readouterr() == ("how to\n", "")


REFUSED = [
    ("", "checkpoint: not given"),
    ("checkpoint=", "checkpoint=: empty"),
    ("checkpoint=no.pt", "no.pt: no such file or folder"),
    ("checkpoint=.", ".: no checkpoints/latest.pt in this folder"),
    ("checkpoint=/dev/null", "/dev/null"),
    ("RUN", "arguments have the form option=value"),
    ("checkpoint=RUN foo=1", "foo: unknown option"),
    ("checkpoint=RUN +foo=1", "foo: unknown option"),
    ("checkpoint=RUN weight=raw", "weight: unknown option, did you mean 'weights'?"),
    ("checkpoint=RUN n=0", "n=0: must be at least 1"),
    ("checkpoint=RUN n=-1", "n=-1: must be at least 1"),
    ("checkpoint=RUN n=many", "n='many': wrong type"),
    ("checkpoint=RUN n=1.5", "n=1.5: wrong type"),
    ("checkpoint=RUN n=.nan", "n=nan: wrong type"),
    ("checkpoint=RUN n=[1]", "n=[1]: wrong type"),
    ("checkpoint=RUN n={a:1", "n='{a:1': wrong type"),
    ("checkpoint=RUN n=2024-13-01", "n='2024-13-01': wrong type"),
    ("checkpoint=RUN n=", "n=: empty"),
    ("checkpoint=RUN n=4 n=5", "n=5: n is given twice"),
    ("checkpoint=RUN n=10001", "n=10001: a grid has at most 10000 images"),
    ("checkpoint=RUN n=99999999999999999999", "n=99999999999999999999: too large"),
    ("checkpoint=RUN seed=-1", "seed=-1: must be at least 0"),
    ("checkpoint=RUN seed=true", "seed=True: wrong type"),
    ("checkpoint=RUN batch_size=0", "batch_size=0: must be at least 1"),
    ("checkpoint=RUN weights=best", "weights=best: unknown, allowed: ema, raw"),
    ("checkpoint=RUN device=gpu", "device=gpu: unknown device"),
    ("checkpoint=RUN device=cuda:99", "device=cuda:99: this machine has"),
    ("checkpoint=RUN labels=10", "labels=10: outside 0 … 9, the classes of digits"),
    ("checkpoint=RUN labels=-1", "labels=-1: outside 0 … 9"),
    ("checkpoint=RUN labels=1,-2", "labels=-2: outside 0 … 9"),
    ("checkpoint=ZIP labels=0", "labels=[0]: this model is not class-conditional"),
    ("checkpoint=RUN labels=a", "labels=['a']: wrong type"),
    ("checkpoint=RUN labels=1,²", "labels=[1, '²']: wrong type"),
    ("checkpoint=RUN labels=1.5", "labels=1.5: wrong type"),
    ("checkpoint=RUN labels={a:1}", "labels={'a:1': None}: wrong type"),
    ("checkpoint=RUN out=", "out=: empty"),
    ("checkpoint=RUN out=x.jpg", "out=x.jpg: a name ending in .png (a grid) or .npz, or a folder, is expected"),
    ("checkpoint=RUN out=file/x.png", "out=file/x.png: cannot write there"),
    (f"checkpoint=RUN out={300 * 'x'}.png", "x.png: cannot write there (File name too long)"),
    ("checkpoint=RUN out=file/x.npz", "out=file/x.npz: cannot write there"),
    ("checkpoint=RUN out=file/x", "out=file/x: cannot write there"),
    ("checkpoint=RUN out=file", "file is a file; name a folder"),
    ("checkpoint=RUN out=full", "full already holds 1 images"),
    ("checkpoint=RUN out=folder.png", "out=folder.png: a folder"),
    ("checkpoint=RUN out=folder.npz", "out=folder.npz: a folder"),
    ("-x", "-x: arguments have the form option=value"),
]  # fmt: skip


@pytest.mark.parametrize("line, message", REFUSED, ids=[line or "nothing" for line, _ in REFUSED])
def test_refused(runs, here, capsys, line, message):
    from training.draw import sample

    (here / "file").write_text("x")
    for folder in ("folder.png", "folder.npz", "full"):
        (here / folder).mkdir()
    (here / "full" / "img00000000.png").touch()
    words = line.replace("RUN", str(runs["digits"])).replace("ZIP", str(runs["zip"])).split()
    words += [] if "device=" in line else ["device=cpu"]
    assert message in refused(capsys, *words, run=lambda *words: cli.simple_main(sample, lambda: "", words))


@pytest.mark.parametrize("form", ["png", "npz", "gif"])
def test_a_place_that_cannot_be_written_is_known_before_anything_is_drawn(runs, here, capsys, monkeypatch, form):
    monkeypatch.setattr("training.draw.generate", lambda *_: pytest.fail("drawn"))
    monkeypatch.setattr("training.draw.interpolation", lambda *_: pytest.fail("drawn"))
    (here / "file").write_text("x")
    more = ["interpolate=0,1"] if form == "gif" else []
    message = refused(capsys, f"checkpoint={runs['digits']}", f"out=file/x.{form}", *more, run=command.sample)
    assert f"out=file/x.{form}: cannot write there (Not a directory)" in message
