import io
import re

import pytest

import training.progress
from training.progress import Progress


class Screen(io.StringIO):
    def __init__(self, tty):
        super().__init__()
        self.tty = tty

    def isatty(self):
        return self.tty


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(training.progress.time, "monotonic", lambda: now[0])
    return now


def stderr(monkeypatch, tty=False):
    """In place of stderr from here on; not a fixture, because pytest swaps stderr between setup and test."""
    screen = Screen(tty)
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def test_a_line_after_every_tenth_of_the_run(monkeypatch, clock):
    plain = stderr(monkeypatch)
    progress = Progress(100_000)
    for images in range(500, 100_001, 500):
        clock[0] += 0.1
        progress.update(images, loss=0.123456, phase="g")
    progress.close()
    progress.close()
    lines = plain.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "10.0/100.0 kimg (10%), 5,000 images/s, 00:18 left, loss 0.1235, phase g"
    assert lines[-1] == "100.0/100.0 kimg (100%), 5,000 images/s, 00:00 left, loss 0.1235, phase g"


def test_a_line_every_half_minute_of_a_long_run(monkeypatch, clock):
    plain = stderr(monkeypatch)
    progress = Progress(100_000_000)
    for second in range(1, 301):
        clock[0] += 1
        progress.update(1000 * second)
    assert len(plain.getvalue().splitlines()) == 10
    assert plain.getvalue().splitlines()[0] == "30.0/100000.0 kimg (0%), 1,000 images/s, 27:46:10 left"


def test_a_resumed_run_counts_its_own_speed_and_tenths(monkeypatch, clock):
    plain = stderr(monkeypatch)
    progress = Progress(100_000, 80_000)
    clock[0] += 1
    progress.update(81_000)
    assert plain.getvalue() == ""
    clock[0] += 2
    progress.update(83_000)
    assert plain.getvalue() == "83.0/100.0 kimg (83%), 1,000 images/s, 00:17 left\n"


def test_close_says_where_an_interrupted_run_stopped(monkeypatch, clock):
    plain = stderr(monkeypatch)
    progress = Progress(100_000)
    clock[0] += 1
    progress.update(5_000)
    assert plain.getvalue() == ""
    progress.close()
    assert plain.getvalue() == "5.000/100.0 kimg (5%), 5,000 images/s, 00:19 left\n"


@pytest.mark.parametrize("tty", [True, False])
@pytest.mark.parametrize("total, start", [(0, 0), (10, 10), (10, 5000), (0, 64)])
def test_nothing_left_to_do(monkeypatch, tty, total, start):
    screen = stderr(monkeypatch, tty)
    progress = Progress(total, start)
    progress.update(start)
    progress.update(start + 64, loss=1.0)
    progress.close()
    assert all(int(percent) <= 100 for percent in re.findall(r"(\d+)%", screen.getvalue()))


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    screen = stderr(monkeypatch, tty=True)
    progress = Progress(20_000, 10_000)
    assert " 50% |" in screen.getvalue() and "10.0/20.0 kimg" in screen.getvalue()
    progress.update(15_000, generator=0.5)
    progress.write("a message")
    progress.close()
    assert "15.0/20.0 kimg" in screen.getvalue() and "images/s" in screen.getvalue() and "generator 0.5" in screen.getvalue()
    assert " 75% |" in screen.getvalue()
    assert capsys.readouterr().out == "a message\n"


def test_disable_means_plain_lines_on_a_terminal_too(monkeypatch, clock, capsys):
    screen = stderr(monkeypatch, tty=True)
    progress = Progress(20_000, disable=True)
    clock[0] += 1
    progress.update(20_000)
    progress.write("a message")
    progress.close()
    assert screen.getvalue() == "20.0/20.0 kimg (100%), 20,000 images/s, 00:00 left\n"
    assert capsys.readouterr().out == "a message\n"
