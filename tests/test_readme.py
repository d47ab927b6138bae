"""What the README shows works: the example GAN trains, and the files and options it names exist."""

import re
import sys
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_example_gan_is_short_and_trains(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import ", "from "))]
    assert len(lines) <= 40
    names = {"__name__": "hinge"}
    monkeypatch.setitem(sys.modules, "hinge", ModuleType("hinge"))  # dataclasses look their module up
    exec(code, names)

    import gans
    from training import cli
    from training.config import build_config
    from training.engine import Engine
    from training.main import build
    from training.processes import Processes

    monkeypatch.setitem(gans.GANS, "hinge", names["HingeGAN"])
    values = cli.compose(cli.parse([])) | {"gan": {"name": "hinge", "width": 8}, "batch_size": 4, "schedule": {}}
    config, _ = build_config(values)
    config.device = "cpu"
    source, gan = build(config)
    engine = Engine(gan, source, config, Processes("cpu"))
    before = {name: [p.detach().clone() for p in ps] for name, ps in engine.sets.items()}
    engine.step()
    for name, parameters in engine.sets.items():
        assert any(not torch.equal(a, b) for a, b in zip(before[name], parameters)), name
    assert {"discriminator/loss", "discriminator/logits_real", "generator/loss_adversarial"} <= set(engine.pop_means())
    assert engine.ema_gan().sample(torch.randn(2, 64)).shape == (2, 1, 16, 16)


def test_linked_pictures_exist():
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path


def test_named_choices_exist():
    commands = re.sub(r"```.*?```", "", README, flags=re.S)
    for group in ("gan", "dataset", "loss", "penalty", "augment", "optim"):
        for choices in re.findall(rf"(?<![\w.]){group}=([\w|]+)", commands):
            for choice in choices.split("|"):
                assert choice == "hinge" or (ROOT / "configs" / group / f"{choice}.yaml").is_file(), f"{group}={choice}"
