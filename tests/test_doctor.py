"""The data doctor: every kind of file that people have is listed with what to do, and training starts or stops with one line."""

import json
import os
import zipfile

import command
import numpy as np
import pytest
from command import the_error
from PIL import Image
from test_data_zip import encoded, images_and, make_zip, names, pixels

from data import check
from data.findings import Findings


def random(*shape, dtype=np.uint8):
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=dtype)


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(Image.fromarray(random(32, 48, 3)), "JPEG", exif=exif)


FILES = {
    "gray.png": encoded(random(32, 32)),
    "la.png": encoded(Image.fromarray(random(32, 32, 2), "LA")),
    "palette.png": encoded(Image.fromarray(random(32, 32, 3)).convert("P")),
    "cmyk.jpg": encoded(Image.fromarray(random(32, 32, 4), "CMYK"), "JPEG"),
    "deep.png": encoded(random(32, 32, dtype=np.uint16) * np.uint16(257)),
    "rgba.png": encoded(random(32, 32, 4)),
    "turned.jpg": turned(),
    "wide.png": encoded(random(40, 64, 3)),
    "plain.png": encoded(random(32, 32, 3)),
    "copy.png": encoded(random(32, 32, 3)),
    "cut.png": encoded(random(64, 64, 3))[:-3000],
    "cut.jpg": encoded(Image.fromarray(random(64, 64, 3)), "JPEG")[:2000],
    "text.png": b"this is no picture",
    "empty.png": b"",
    "notes.txt": b"x",
}
BAD = ("cut.jpg", "cut.png", "empty.png", "text.png")


@pytest.fixture
def zoo(tmp_path):
    """A folder with a file of every kind."""
    for name, content in FILES.items():
        (tmp_path / "zoo" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "zoo" / name).write_bytes(content)
    os.mkfifo(tmp_path / "zoo" / "pipe.png")
    return tmp_path / "zoo"


def doctor(capsys, *words):
    """(exit status, lines) of ``python -m data.check <words>``."""
    status = check.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert not err
    return status, out.splitlines()


EVERY_KIND = [
    "stop cut.jpg: cannot be read as an image (image file is truncated",
    "stop cut.png: cannot be read as an image (image file is truncated",
    "stop empty.png: cannot be read as an image (the file is empty); replace or remove it",
    "stop text.png: cannot be read as an image (unknown image format); replace or remove it",
    "stop 4 images cannot be read: replace or remove them, or set dataset.on_error=skip",
    "ok   10 images: 8 PNG, 2 JPEG",
    "ok   modes 4 RGB, 1 L; 3 gray images among colour get three equal channels",
    "note 1 image of mode LA: gray with transparency; laid over white",
    "ok   1 image of mode P: palette; becomes RGB, nothing to do",
    "note 1 image of mode CMYK: converted without a colour profile",
    "note 1 image of mode I: gray of 16 bits; scaled to 8 bits",
    "note 1 image of mode RGBA: RGB with transparency; laid over white",
    "ok   1 image turned upright as their EXIF entry says",
    "stop sizes 8 32x32, 1 32x48, 1 64x40: set dataset.resolution (the smallest side is 32, so 32 for example)",
    "note 1 image there twice (plain.png = copy.png): remove the copies",
    "ok   not images and left alone: .txt; nothing to do",
    "stop 10 images for batch_size=64: lower batch_size or add images",
]


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_every_kind_of_file_is_listed(zoo, tmp_path, capsys, kind):
    path = zoo
    if kind == "zip":
        path = tmp_path / "zoo.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in FILES.items():
                archive.writestr(name, content)
    status, lines = doctor(capsys, path)
    for expected in EVERY_KIND:
        assert sum(line.startswith(expected) for line in lines) == 1, (expected, lines)
    assert status == 1 and lines[-1] == "training would not start"


def test_with_its_advice_taken_training_can_start(zoo, capsys):
    status, lines = doctor(capsys, zoo, "resolution=32", "on_error=skip", "batch_size=10")
    assert status == 0 and lines[-1] == "training can start" and not any(line.startswith("stop") for line in lines)
    assert [line[5:].split(":")[0] for line in lines if "cannot be read as" in line] == list(BAD)
    assert "ok   sizes 8 32x32, 1 32x48, 1 64x40, used at 32x32; 2 not square: the centre is kept" in lines


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """train.py on a tiny network in a fresh folder -> (exit status, standard output)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("training.trainer.plot_losses", lambda lines, path: None)

    def start(*options):
        status = command.train("dataset=folder", "dataset.resolution=8", "checkpoint.every_kimg=0", *options)
        return status, capsys.readouterr().out if status == 0 else the_error(capsys)

    return start


def test_training_stops_with_one_line_or_starts_and_lists_what_it_skips(zoo, tmp_path, run):
    status, line = run(f"dataset.path={zoo}")
    assert status == 2 and f"dataset.path={zoo}: cut.jpg: cannot be read as an image" in line and "dataset.on_error=skip" in line
    assert not (tmp_path / "runs").exists()
    status, out = run(f"dataset.path={zoo}", "dataset.on_error=skip", "run_dir=run")
    assert status == 0 and "data: 4 images left out (dataset.on_error=skip)" in out
    report = (tmp_path / "run" / "data.txt").read_text()
    assert all(f"note {name}: cannot be read as an image" in report for name in BAD)
    assert "ok   10 images" in report and "ok   10 images" not in out


def test_training_stops_with_one_line_on_what_is_no_data(tmp_path, run):
    (tmp_path / "empty").mkdir()
    assert "no images in the folder" in run("dataset.path=empty")[1]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.png").write_bytes(FILES["plain.png"])
    assert "dataset has 1 image, batch_size=8: lower batch_size or add images" in run("dataset.path=one")[1]
    make_zip(tmp_path / "bare.zip", images_and(None, 12))
    message = run("dataset.path=bare.zip", "gan.conditional=true")[1]
    assert "gan.conditional=true needs labels, and dataset folder has none" in message
    make_zip(tmp_path / "wrong.zip", images_and([[name, 0] for name in names(14)], 12))
    assert "dataset.json labels 2 images that are not in the zip, the first is 00000/img00000012.png" in run(
        "dataset.path=wrong.zip")[1]  # fmt: skip


def test_one_image_and_none(tmp_path, capsys):
    status, lines = doctor(capsys, make_zip(tmp_path / "one.zip", images_and(None, 1)))
    assert status == 1 and "stop 1 image for batch_size=64: lower batch_size or add images" in lines
    status, lines = doctor(capsys, tmp_path)
    assert status == 1 and any(line.startswith("stop") and "no images in the folder" in line for line in lines)
    status, lines = doctor(capsys, make_zip(tmp_path / "none.zip", {"a.png": "text"}))
    assert status == 1 and any("no image can be read" in line for line in lines)
    status, lines = doctor(capsys, tmp_path / "missing.zip")
    assert status == 1 and "no such file or folder" in lines[0]


def test_labels(tmp_path, capsys):
    bare = make_zip(tmp_path / "bare.zip", images_and(None))
    assert doctor(capsys, bare, "batch_size=4")[0] == 0
    status, lines = doctor(capsys, bare, "batch_size=4", "labels=true")
    assert status == 1 and any(line.startswith("stop no labels, and the model needs them") for line in lines)
    wrong = make_zip(tmp_path / "wrong.zip", images_and([[name, 0] for name in names(6)]))
    status, lines = doctor(capsys, wrong, "batch_size=4")
    assert status == 1 and any(line.startswith("stop dataset.json labels 2 images that are not in the zip") for line in lines)
    assert "ok   4 images: PNG" in lines  # and goes on


def test_balance_gaps_and_twins_across_classes(tmp_path, capsys):
    members = {f"{k:02d}.png": pixels(k) for k in range(22)} | {"21.png": pixels(0)}
    labels = [[name, 0 if k < 20 else 2] for k, name in enumerate(sorted(members))]
    path = make_zip(tmp_path / "a.zip", members | {"dataset.json": json.dumps({"labels": labels})})
    text = "\n".join(doctor(capsys, path, "batch_size=4")[1])
    assert "ok   3 classes, 0 to 20 images each" in text and "note 1 classes without images (1)" in text
    assert "note unbalanced: class 2 has 2 images, class 0 20" in text
    assert "note 1 of them with different labels (21.png and 00.png)" in text
    assert "note most models want a side of 2^k, not 6: set dataset.resolution=4, or dataset.pad_to=8" in text


def test_small_images_would_be_enlarged(tmp_path, capsys):
    path = make_zip(tmp_path / "a.zip", {"a.png": pixels(0, 8, 8), "b.png": pixels(1, 16, 16)})
    text = "\n".join(doctor(capsys, path, "resolution=16", "batch_size=2")[1])
    assert "note some are smaller than dataset.resolution=16 (smallest side 8) and are enlarged" in text


def test_known_sets_are_checked_with_their_own_settings(tmp_path, capsys):
    path = make_zip(tmp_path / "a.zip", {f"{k}.png": pixels(k, 28, 28, 1) for k in range(3)})
    status, lines = doctor(capsys, path, "dataset=mnist", "batch_size=3")
    assert status == 0 and "ok   sizes 28x28, used at 32x32" in lines
    found = doctor(capsys, "x", "dataset=digits")[1][0]
    assert found == "ok   dataset=digits comes with a library or is made here: nothing to check"


@pytest.mark.parametrize(
    "words, message",
    [
        (["a", "b"], "one PATH is expected"),
        (["a", "resolutoin=3"], "resolutoin=3: unknown option, did you mean 'resolution'?"),
        (["a", "resolution=x"], "resolution=x: a value of type int is expected"),
        (["a", "dataset=mnits"], "dataset=mnits: unknown dataset, did you mean 'mnist'?"),
        (["a", "on_error=ignore"], "dataset.on_error=ignore: unknown, allowed: skip, strict"),
        (["a", "dataset.resolution=0"], "dataset.resolution=0: allowed: 1 or more"),
    ],
)
def test_mistakes_in_the_words(capsys, words, message):
    assert check.main(words) == 2
    out, err = capsys.readouterr()
    assert message in err and len(err.splitlines()) == 1 and not out


def test_help(capsys):
    assert check.main([]) == 2 and check.main(["--help"]) == 0
    assert "python -m data.check PATH" in capsys.readouterr().out


def test_findings_survive_json():
    findings = Findings(count=2, gray=1)
    findings.kinds["PNG"] = 2
    findings.sizes["8x8"] = 2
    findings.unreadable.append(("a", "why"))
    findings.duplicates.append(("b", "c", True))
    assert Findings.of(json.loads(json.dumps(findings.plain()))) == findings


def test_brief_reports_name_a_few_of_many_unreadable_files():
    findings = Findings(unreadable=[(f"{k}.png", f"{k}.png: broken") for k in range(100)])
    assert len(list(findings.lines(strict=False))) == 101
    assert len(list(findings.lines(strict=False, most=5))) == 6
