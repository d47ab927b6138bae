import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.plots import _panels, plot_losses


def made_up_log(n, seed=0):
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        images, noise = 64_000 * (i + 1), rng.standard_normal(6)
        d, r1, g = 0.7 + 0.1 * noise[0], 0.05 * math.exp(noise[1]), 1 + 0.1 * noise[2]
        lines.append({
            "step": i, "images_seen": images, "kimg": images / 1000, "sec_per_kimg": 1.3, "images_per_sec": 800 + noise[3],
            "memory_gb": None,
            "discriminator/loss": d + r1, "discriminator/adversarial": d, "discriminator/r1": r1,
            "discriminator/logits_real": 1 + noise[4], "discriminator/logits_fake": -1.0,
            "discriminator/real_above_fake": 0.8, "discriminator/sign_real": 0.6, "discriminator/grad_norm": math.exp(noise[5]),
            "discriminator/skipped": 0.0, "generator/loss": g, "generator/adversarial": g, "generator/grad_norm": 0.5,
            "generator/skipped": float(i == n - 1 > 0), "value/lr": 2e-4 * (1 - i / n), "value/gamma": 0.05, "value/alpha": i / n,
        })  # fmt: skip
    lines.append({"step": n, "images_seen": 64_000 * n, "kimg": 64.0 * n, "eval/fid": 12.0, "eval/precision": 0.6})
    return lines


def is_picture(path):
    with Image.open(path) as image:
        image.load()
        return image.format == "PNG" and image.width > 400 and np.asarray(image.convert("L")).std() > 1


def test_every_quantity_finds_its_panel():
    panels, constants = _panels(made_up_log(30))
    assert {p.title: list(p.series) for p in panels} == {
        "Loss: discriminator": ["adversarial", "loss (sum)"],
        "Loss: generator": ["adversarial"],  # its sum is its only term
        "Logits": ["D(real)", "D(fake)"],
        "Shares": ["D(real) > D(fake)", "D(real) > 0"],
        "Penalties": ["discriminator r1"],
        "Gradient norms": ["discriminator", "generator"],
        "Skipped updates": ["generator"],
        "Learning rate": ["lr"],
        "Scheduled: alpha": ["alpha"],
        "Metric: fid": ["fid"],
        "Metrics in [0, 1]": ["precision"],
        "Speed": ["Speed"],
    }
    assert constants == {"gamma": 0.05}


def test_panels_without_data_are_left_out():
    panels, constants = _panels([{"images_seen": 1, "critic/adversarial": 1.0, "critic/gp": None, "critic/grad_norm": 0.0}])
    assert [p.title for p in panels] == ["Loss: critic"] and constants == {}


def test_two_discriminators_are_told_apart():
    lines = [{"images_seen": i, "d_a/logits_real": 1.0, "d_b/logits_real": 2.0, "d_b/real_above_fake": 0.5} for i in range(3)]
    series = {p.title: list(p.series) for p in _panels(lines)[0]}
    assert series == {"Logits": ["d_a D(real)", "d_b D(real)"], "Shares": ["d_b D(real) > D(fake)"]}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, 1500])
def test_plots_logs_of_any_length(tmp_path, n):
    assert plot_losses(made_up_log(n), tmp_path / "run" / "loss.png") == tmp_path / "run" / "loss.png"
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["loss.png"]
    assert is_picture(tmp_path / "run" / "loss.png")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lines", [
    [],
    [{}],
    [{"step": 1}],
    [{"images_seen": math.inf, "kimg": math.inf, "d/loss": 1.0}, {"images_seen": 64, "d/loss": 2.0}],
    [{"event": "resumed"}, {"images_seen": None, "d/loss": 1.0}],
    [{"images_seen": 1000, "d/loss": None, "d/r1": math.nan, "d/grad_norm": -1.0, "value/lr": math.inf, "eval/fid": "n/a"}],
    [{"images_seen": 0, "d/loss": 1.0, "d/grad_norm": 0.0, "value/lr": 0.0}] * 3,
    [{"images_seen": 64 * i, "d/loss": 1e300 * (-1) ** i, "d/r1": 10**400, "d/skipped": 1.0} for i in range(100)],
    [{"kimg": 0.1 * i, "d/loss": None if i % 2 else 0.5, "value/lr": None if i == 1 else 0.1 * i} for i in range(5)],
    [{"images_seen": i, "d/loss": 1e6 if i == 30 else math.sin(i)} for i in range(60)],
    [{"images_seen": i, **{f"d/term{k}": float(k) for k in range(25)}} for i in range(3)],
    [{"images_seen": 5, **{f"value/number{k}": 1.0 for k in range(60)}, "d/loss": 1.0}],
])  # fmt: skip
def test_plots_odd_logs(tmp_path, lines):
    assert is_picture(plot_losses(lines, tmp_path / "loss.png"))


def test_importing_and_plotting_touch_no_backend(tmp_path):
    code = f"""
import sys
from pathlib import Path
import training.plots
assert "matplotlib" not in sys.modules
training.plots.plot_losses([{{"images_seen": 1, "d/loss": 1.0}}], {str(tmp_path / "loss.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
