import json
import math
import random

import numpy as np
import pytest
import torch

from errors import UserError
from training.log import JsonLines, cut_pictures, images_of, kimg_name


def write_log(path, steps):
    with JsonLines(path) as log:
        for step in steps:
            log.write({"step": step, "generator/loss": step / 7})


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    log = JsonLines(tmp_path / "run" / "log.jsonl")
    log.write({"step": 1})
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == b'{"step": 1}\n'
    log.write({"step": 2})
    assert JsonLines.read(log.path) == [{"step": 1}, {"step": 2}]
    log.close()
    log.close()


def test_values_become_valid_json(tmp_path):
    path = tmp_path / "log.jsonl"
    with JsonLines(path) as log:
        log.write({
            "nan": math.nan, "inf": torch.tensor(torch.inf), "tensor": torch.tensor(1.5), "count": torch.tensor(3),
            "numpy": np.float32(0.25), "list": [1, -math.inf, np.int64(4)], "nested": {"nan": np.float64("nan")},
            "flag": True, "none": None, "text": "a\nb", "path": tmp_path, "half": torch.tensor(0.5, dtype=torch.bfloat16),
        })  # fmt: skip

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {
        "nan": None, "inf": None, "tensor": 1.5, "count": 3, "numpy": 0.25, "list": [1, None, 4], "nested": {"nan": None},
        "flag": True, "none": None, "text": "a\nb", "path": str(tmp_path), "half": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("half", [b'{"step": 4, "gener', b"{", b"\x00\x00\x00", b'{"text": "\xc3', b'{"step": 4}x', b"42"])
def test_a_half_written_last_line_is_read_over_cut_and_mended(tmp_path, half):
    path = tmp_path / "log.jsonl"
    write_log(path, [1, 2, 3])
    whole = path.read_bytes()
    path.write_bytes(whole + half)
    assert [r["step"] for r in JsonLines.read(path)] == [1, 2, 3]
    write_log(path, [])  # opening mends the file
    assert path.read_bytes() == whole
    path.write_bytes(whole + half)
    write_log(path, [4])
    assert [r["step"] for r in JsonLines.read(path)] == [1, 2, 3, 4]
    path.write_bytes(whole + half)
    assert JsonLines.cut(path, 3) == 1
    assert path.read_bytes() == whole


def test_a_whole_last_line_without_its_line_break_is_kept(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    assert [r["step"] for r in JsonLines.read(path)] == [1, 2]
    write_log(path, [3])
    assert [r["step"] for r in JsonLines.read(path)] == [1, 2, 3]


def test_mending_finds_a_line_break_far_back(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"text": "' + b"x" * 200_000)
    write_log(path, [2])
    assert JsonLines.read(path)[0] == {"step": 1} and len(JsonLines.read(path)) == 2
    path.write_bytes(b'{"text": "' + b"x" * 200_000)
    write_log(path, [3])
    assert [r["step"] for r in JsonLines.read(path)] == [3]


def test_cut_drops_what_is_past_the_step_and_keeps_the_rest_byte_for_byte(tmp_path):
    path = tmp_path / "log.jsonl"
    write_log(path, [10, 20, 30])
    whole = path.read_bytes()
    with JsonLines(path) as log:
        log.write({"step": 40})
        log.write({"event": "no step"})
        log.write({"step": 50})
    assert JsonLines.cut(path, 30) == 2
    assert path.read_bytes() == whole + b'{"event": "no step"}\n'
    assert JsonLines.cut(path, 30) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]
    assert JsonLines.cut(tmp_path / "missing.jsonl", 30) == 0
    assert JsonLines.read(tmp_path / "missing.jsonl") == []


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\nnonsense\n\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"log\.jsonl: line 2 is not a JSON object"):
        JsonLines.read(path)
    JsonLines.cut(path, 2)
    assert [r["step"] for r in JsonLines.read(path)] == [1, 2]


def test_names_of_moments():
    assert kimg_name(20_000) == "kimg00020"
    assert kimg_name(20_512) == "kimg00020.512"
    assert kimg_name(64) == "kimg00000.064"
    assert kimg_name(0) == "kimg00000"
    assert kimg_name(99_999_999) == "kimg99999.999"
    assert kimg_name(123_456_000) == "kimg123456"
    with pytest.raises(ValueError, match="negative"):
        kimg_name(-1)


def test_names_sort_are_unique_and_tell_their_count():
    rng = random.Random(0)
    counts = sorted({*range(0, 3000), *(rng.randrange(100_000_000) for _ in range(3000)), *range(0, 99_000_000, 1_000_000)})
    names = [kimg_name(count) for count in counts]
    assert names == sorted(names) and len(set(names)) == len(names)
    assert [images_of(name) for name in names] == counts
    assert [images_of(f"runs/x/samples/{name}.png") for name in names] == counts
    assert images_of("kimg00020.512-ema.pt") == 20_512 and images_of("kimg00020-ema.png") == 20_000


@pytest.mark.parametrize(
    "name", ["latest.pt", "kimg", "kimg20", "kimg00020.5.png", "kimg00020.5123", "xkimg00020", "kimg00020.051.2"]
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="not a name like"):
        images_of(name)


def test_cut_pictures(tmp_path):
    for name in ("kimg00000.png", "kimg00020.png", "kimg00020.512.png", "kimg00020.513.png", "kimg00021.png",
                 "kimg00099.pt", "kimgs.png", "real.png"):  # fmt: skip
        (tmp_path / name).touch()
    deleted = cut_pictures(tmp_path, 20.512)
    assert [p.name for p in deleted] == ["kimg00020.513.png", "kimg00021.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "kimg00000.png", "kimg00020.512.png", "kimg00020.png", "kimg00099.pt", "kimgs.png", "real.png",
    ]  # fmt: skip
    assert cut_pictures(tmp_path / "missing", 0) == []
