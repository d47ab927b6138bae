"""evaluate.py: data without another part, what compare= says of a path, and places that are tried before the work."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys
from command import make_zip
from toy_checkpoint import save_toy

import data
from data import DatasetOptions
from errors import UserError
from training import measure as measure_module
from training.cli import groups
from training.measure import MADE_HERE, measure


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(**options):
    """The message of a refusal."""
    with pytest.raises(UserError) as error:
        measure({"device": "cpu", **options})
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["ring", "stacked_digits", "digits"])
def test_data_without_another_part_says_what_there_is(name):
    one_set = f"dataset={name} is one set here, without a test part"
    assert told(dataset=name, compare="test") == f"compare=test: {one_set}; compare=train gives the floor"
    assert told(dataset=name, compare="x.zip") == f"compare=x.zip: dataset={name} reads no files; compare=train gives the floor"
    assert told(dataset=name, compare="train", split="test") == f"split=test: {one_set}; leave split out"


def test_data_of_files_asks_for_a_path(here):
    files = {"dataset": "zip", "dataset.path": str(make_zip(here / "a.zip", 4))}
    assert told(**files, compare="test") == "compare=test: dataset=zip is one set here, without a test part; give compare=PATH"
    assert told(**files, compare="train", split="test").endswith("without a test part; give dataset.path=PATH")


@pytest.mark.parametrize("name", groups()["dataset"])
def test_which_data_reads_no_files(name):
    """All others miss the file, so that a hint to give one can be followed."""
    with pytest.raises(UserError) as error:
        data.build(DatasetOptions(name, path="nowhere"))
    assert ("leave it unset" in str(error.value)) == (name in MADE_HERE)


def test_compare_names_a_path_once(here):
    (here / "x.zip").touch()
    (here / "empty").mkdir()
    files = {"dataset": "zip", "dataset.path": str(make_zip(here / "a.zip", 4))}
    for path, message in (("x.zip", "compare=x.zip is no zip file"), ("empty", "compare=empty is a folder")):
        found = told(**files, compare=path)
        assert found.startswith(message) and found.count(path) == 1 and "dataset.path=" not in found
    images = {"dataset": "ffhq64", "dataset.path": str(here / "a.zip")}
    assert told(**images, compare="empty").startswith("compare=empty: no images in the folder")
    assert told(**files, compare=300 * "x").startswith(f"compare={300 * 'x'}: no such file")


@pytest.mark.parametrize("more", [{}, {"all": True}])
def test_default_places_are_tried_first(here, monkeypatch, more):
    run = save_toy(here / "run", toys.values("r3gan", dataset={"name": "digits"}))

    def touch(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(measure_module, "features_of", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr(Path, "touch", touch)
    place = run if more else run / "checkpoints"
    message = f"out={place}: cannot write there (Permission denied); give another out=FILE.json"
    assert told(checkpoint=str(run), extractor="random", **more) == message
