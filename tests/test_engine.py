"""What the weights become: gradients that do not depend on micro-batches, precision, gradients that are not finite."""

import json
import math
import subprocess
import sys

import pytest
import torch
import toy_run
import toys

from training import checkpoint
from training.engine import MAX_BAD_IN_A_ROW, Diverged
from training.log import JsonLines


def relative(found, expected):
    """Largest difference of a tensor relative to its largest entry, over all tensors (one may be zero but for rounding)."""
    assert found.keys() == expected.keys()
    floor = 1e-4 * max(t.abs().max() for t in expected.values())
    return max(float((found[k] - expected[k]).abs().max() / expected[k].abs().max().clamp(min=floor)) for k in found)


def distance(found, expected):
    """||found - expected|| / ||expected|| of all tensors as one vector."""
    assert found.keys() == expected.keys()
    a, b = (torch.cat([g[k].flatten().double() for k in expected]) for g in (found, expected))
    return float((a - b).norm() / b.norm())


def gradients(name, prepare=None, **changes):
    return toy_run.all_gradients(toy_run.build_engine(toys.values(name, **changes), prepare))


def run(name, tmp_path, **changes):
    """A run in a process of its own: (status, what it printed, folder)."""
    folder = tmp_path / name
    group = toy_run.start("train", {"values": toys.values(name, run_dir=str(folder), **changes)}, tmp_path / "out")
    (status,) = toy_run.wait(group)
    return status, (tmp_path / "out").read_text(), folder


# micro-batches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r3gan", "clipped", "lazy", "pooled"])
def test_gradients_do_not_depend_on_micro_batches(name):
    """8 = 4 + 4 = 3 + 3 + 2, penalties included, to 5e-6 of each tensor's largest entry and 1e-6 of the whole."""
    whole = gradients(name)
    assert len(whole) >= 8 and sum(bool(g.any()) for g in whole.values()) >= 7
    for micro_batch in (4, 3, 1):
        parts = gradients(name, micro_batch=micro_batch)
        assert relative(parts, whole) < 5e-6 and distance(parts, whole) < 1e-6
        assert any(not torch.equal(parts[k], whole[k]) for k in whole)  # or they were not split


def test_reports_do_not_depend_on_micro_batches():
    means = []
    for micro_batch in (None, 3):
        engine = toy_run.build_engine(toys.values("r3gan", micro_batch=micro_batch))
        engine.step()
        means.append(engine.pop_means())
    assert means[1] == {k: pytest.approx(v, rel=1e-4, abs=1e-6) for k, v in means[0].items()}
    assert {"discriminator/loss", "discriminator/grad_norm", "generator/skipped"} <= means[0].keys()


def test_a_log_line_holds_means_over_what_ran_since_the_last():
    """Over steps, and for a phase that ran less often over its own runs."""
    each, all_at_once = (toy_run.build_engine(toys.values("lazy", gan={"interval": 2})) for _ in range(2))
    lines = []
    for _ in range(3):
        each.step()
        all_at_once.step()
        lines.append(each.pop_means())
    means = all_at_once.pop_means()
    assert means.keys() == lines[0].keys() > lines[1].keys()
    for name, mean in means.items():
        values = [line[name] for line in lines if name in line]
        assert len(values) == (2 if name.startswith("regularizer") else 3)
        assert mean == pytest.approx(sum(values) / len(values), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["r3gan", "pooled", "reusing"])
def test_the_same_run_gives_the_same_bits(name):
    states = []
    for attempt in range(2):
        engine = toy_run.build_engine(toys.values(name, gan={} if name == "r3gan" else {"dropout": 0.3}))
        for _ in range(3):
            torch.rand(1 + attempt)  # whatever else draws from the default generator
            engine.step()
        states.append(engine.gan.state_dict() | {f"ema.{k}": v for k, v in engine.ema["generator"].state_dict().items()})
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    engine = toy_run.build_engine(toys.values(name, seed=1))
    assert not torch.equal(next(engine.gan.parameters()), list(states[0].values())[0])


def test_layers_draw_anew_in_each_step_phase_and_micro_batch():
    masks = []

    def prepare(gan):
        gan.discriminator[3].register_forward_hook(lambda module, x, y: masks.append((y == 0).flatten()))

    engine = toy_run.build_engine(toys.values("lazy", gan={"dropout": 0.5}, micro_batch=4), prepare)
    for _ in range(3):
        engine.step()
    assert len(masks) == 3 * 2 * (2 + 2) + 1 == len(torch.stack(masks).unique(dim=0))  # 24 bits each


def test_only_what_a_phase_trains_requires_grad():
    required = {}

    def watched(gan, name):
        original = getattr(gan, name)

        def loss(batch):
            required[name] = [next(net.parameters()).requires_grad for net in (gan.generator, gan.discriminator)]
            return original(batch)

        return loss

    def prepare(gan):
        for name in ("discriminator_loss", "generator_loss"):
            setattr(gan, name, watched(gan, name))

    toy_run.build_engine(toys.values("lazy"), prepare).step()
    assert required == {"discriminator_loss": [False, True], "generator_loss": [True, False]}
    required.clear()
    toy_run.build_engine(toys.values("reusing"), prepare).step()
    assert required == {"discriminator_loss": [True, True], "generator_loss": [True, False]}


def test_a_model_may_have_buffers_of_any_rank():
    for layout in (True, False):
        engine = toy_run.build_engine(toys.values("r3gan", channels_last=layout))
        weight = next(p for p in engine.gan.discriminator.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1)
        assert weight.is_contiguous(memory_format=torch.channels_last) == layout
    assert toy_run.build_engine(toys.values("pooled")).gan.pool.ndim == 5


# clipping, determinism -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1e-3, 1e3, None])
def test_clip_grad_norm(limit):
    """With SGD at lr 1 the step is the gradient: of norm ``limit`` if it was longer, else untouched."""
    engine = toy_run.build_engine(toys.values("lazy", optim={"name": "sgd", "lr": 1.0}, clip_grad_norm=limit))
    phase = engine.phases[1]
    engine.gradients(phase)
    before = [p.detach().clone() for p in engine.sets["generator"]]
    gradient = torch.cat([p.grad.flatten() for p in engine.sets["generator"]])
    engine._update(phase)
    step = torch.cat([(b - p.detach()).flatten() for b, p in zip(before, engine.sets["generator"])])
    scale = min(1.0, (limit or 1e9) / float(gradient.norm()))
    torch.testing.assert_close(step, gradient * scale, rtol=1e-3, atol=1e-7)
    assert engine.pop_means()["generator/grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)  # before clipping


def test_deterministic_runs_and_says_what_is_not(tmp_path):
    status, output, _ = run("r3gan", tmp_path, deterministic=True, total_kimg=0.016)
    assert status == 0 and "operations without a deterministic kernel: none" in output


# gradients that are not finite ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, MAX_BAD_IN_A_ROW - 1])
def test_a_bad_gradient_is_skipped_and_counted(times):
    options = {"phase": "generator", "nan_from": 1, "nan_until": 1 + times}
    engine = toy_run.build_engine(toys.values("failing", gan=options))
    engine.step()
    engine.pop_means()
    for _ in range(times):
        before = {name: [p.detach().clone() for p in engine.sets[name]] for name in engine.sets}
        engine.step()
        assert all(torch.equal(a, b) for a, b in zip(before["generator"], engine.sets["generator"]))
        assert not all(torch.equal(a, b) for a, b in zip(before["discriminator"], engine.sets["discriminator"]))
    means = engine.pop_means()
    assert means["generator/skipped"] == 1.0 and means["discriminator/skipped"] == 0.0
    assert all(math.isfinite(value) for value in means.values()) and "discriminator/loss" in means
    assert engine.bad_in_a_row == {"discriminator": 0, "generator": times}
    engine.step()
    assert engine.bad_in_a_row["generator"] == 0 and engine.pop_means()["generator/skipped"] == 0.0
    assert not all(torch.equal(a, b) for a, b in zip(before["generator"], engine.sets["generator"]))
    assert all(torch.isfinite(t).all() for t in engine.gan.state_dict().values())


@pytest.mark.parametrize("phase", ["generator", "discriminator"])
def test_bad_gradients_in_a_row_stop_the_run(phase, tmp_path):
    """Exit status 1 at once, with step, phase and tensor; no way back in; the last checkpoint is finite."""
    options = {"phase": phase, "nan_from": 4, "nan_until": 99}
    status, output, folder = run("failing", tmp_path, gan=options, checkpoint={"every_kimg": 0.008})
    tensor = "generator.0.weight" if phase == "generator" else "discriminator.1.weight"
    assert status == 1
    assert f"error: training diverged at step 6 (0.048 kimg), phase {phase}: the gradient of {tensor} was not finite" in output
    assert "Traceback" not in output and output.count("run folder:") == 1
    state = checkpoint.load(folder / "checkpoints" / "latest.pt")
    assert state["clock"] == {"step": 6, "images_seen": 48} and state["bad_in_a_row"][phase] == 2
    assert checkpoint.nonfinite(state["gan"]) is None
    skipped = {line["step"]: line[f"{phase}/skipped"] for line in JsonLines.read(folder / "log.jsonl")}
    assert skipped == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 1.0, 6: 1.0}
    # going on repeats the same step and stops there again, after one bad gradient more
    group = toy_run.start("train", {"values": {"resume": str(folder)}}, tmp_path / "again")
    assert toy_run.wait(group) == [1] and "diverged at step 6" in (tmp_path / "again").read_text()


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    status, output, folder = run("failing", tmp_path, gan={"poison_at": 2}, checkpoint={"every_kimg": 0.008, "keep": 9})
    assert status == 1 and "error: training diverged at step 3 (0.024 kimg): gan.generator.0.bias is not finite" in output
    names = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert names == ["kimg00000.008.pt", "kimg00000.016.pt", "kimg00000.pt", "latest.pt"]
    for name in names:
        assert checkpoint.nonfinite(checkpoint.load(folder / "checkpoints" / name)) is None


def test_one_phase_does_not_excuse_another():
    """Phases count for themselves: a phase that is fine between two bad ones resets nothing."""
    engine = toy_run.build_engine(toys.values("failing", gan={"phase": "generator", "nan_from": 0, "nan_until": 99}))
    for _ in range(MAX_BAD_IN_A_ROW - 1):
        engine.step()
    with pytest.raises(Diverged, match="step 2 .*phase generator: the gradient of generator.0.weight"):
        engine.step()


# precision -----------------------------------------------------------------------------------------------------------------


def heavy(**changes):
    return {"penalty": {"name": "r1_r2", "gamma": 20.0}, "schedule": {}, **changes}


def test_bfloat16_gradients_are_near_and_logits_leave_in_fp32():
    exact = gradients("r3gan", **heavy())
    dtypes = set()

    def prepare(gan):
        for net in (gan.generator, gan.discriminator):
            net.register_forward_hook(lambda module, x, y: dtypes.add(y.dtype))
            for module in net.modules():
                module.register_forward_hook(lambda module, x, y: inner.add(y.dtype))

    inner = set()
    near = gradients("r3gan", prepare, **heavy(precision="bf16"))
    assert dtypes == {torch.float32} and torch.bfloat16 in inner
    assert 1e-4 < distance(near, exact) < 0.05
    assert all(g.dtype == torch.float32 for g in near.values())


def faint(gan):
    """Logits so small that their gradient with respect to the images is lost in fp16, unless it is scaled."""
    with torch.no_grad():
        list(gan.discriminator.parameters())[-1].mul_(1e-5)


def test_fp16_penalty_gradients_survive_by_scaling():
    """Gradients of a penalty on image gradients below fp16's range equal those of fp32 within fp16's error, per set scaler."""
    penalty_only = heavy(penalty={"name": "r1_r2", "gamma": 1e6}, loss={"name": "wasserstein"})
    exact = gradients("r3gan", faint, **penalty_only)
    engine = toy_run.build_engine(toys.values("r3gan", precision="fp16", **penalty_only), faint)
    assert engine.scalers["generator"] is not engine.scalers["discriminator"]
    scaled = toy_run.all_gradients(engine)
    scales = {name: scaler.get_scale() for name, scaler in engine.scalers.items()}
    assert scales == {"generator": 65536.0, "discriminator": 65536.0}
    found = {k: g / scales[k.split(".")[0]] for k, g in scaled.items()}
    assert 1e-5 < distance(found, exact) < 1e-2
    engine.step()
    norm = torch.cat([g.flatten() for k, g in exact.items() if k.startswith("discriminator")]).norm()
    assert engine.pop_means()["discriminator/grad_norm"] == pytest.approx(float(norm), rel=1e-2)  # what is logged is not scaled


def test_two_phases_of_one_set_share_a_scaler():
    """A lazy penalty under fp16: the gradient of each phase is unscaled once."""
    lazy = heavy(penalty={"name": "r1_r2", "gamma": 0.5, "interval": 2})
    norms = []
    for precision in ("fp32", "fp16"):
        engine = toy_run.build_engine(toys.values("r3gan", precision=precision, **lazy))
        assert [phase.trains for phase in engine.phases] == ["discriminator", "generator", "discriminator"]
        engine.step()
        norms.append({k: v for k, v in engine.pop_means().items() if k.endswith("grad_norm")})
    assert norms[1] == {k: pytest.approx(v, rel=1e-2) for k, v in norms[0].items()} and len(norms[0]) == 3


def test_an_overflow_that_lowers_the_scale_is_no_fault():
    engine = toy_run.build_engine(toys.values("r3gan", precision="fp16"))
    engine.scalers["discriminator"] = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    generator_scale = engine.scalers["generator"].get_scale()
    before = [p.detach().clone() for p in engine.sets["discriminator"]]
    steps = 0
    while engine.scalers["discriminator"].get_scale() > 2.0**110:
        engine.step()
        steps += 1
        assert engine.bad_in_a_row["discriminator"] == 0
    assert steps == 10 > MAX_BAD_IN_A_ROW
    assert all(torch.equal(a, b) for a, b in zip(before, engine.sets["discriminator"]))
    assert engine.pop_means()["discriminator/skipped"] == 1.0
    assert engine.scalers["generator"].get_scale() == generator_scale  # each set has its own


def test_gradients_that_no_scale_helps_stop_an_fp16_run():
    """The scale falls from 2^16 to 1 without blame; the next three count."""
    engine = toy_run.build_engine(toys.values("failing", precision="fp16", gan={"nan_from": 0, "nan_until": 99}))
    with pytest.raises(Diverged, match="phase generator"):
        for _ in range(40):
            engine.step()
    assert engine.clock.step == 16 + MAX_BAD_IN_A_ROW - 1


# checkpoints ---------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_opens_without_this_project(tmp_path):
    status, output, folder = run("reusing", tmp_path, total_kimg=0.024)
    assert status == 0, output
    code = """
import json, sys, torch
def kinds(value):
    found = {f"{type(value).__module__}.{type(value).__name__}"}
    for inner in value.items() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        found |= kinds(inner)
    return found
state = torch.load(sys.argv[1], weights_only=True)
try:
    import training
except ImportError:
    print(json.dumps([sorted(state), sorted(kinds(state)), sorted(state["gan"]), state["config"]["gan"]["name"]]))
"""
    path = folder / "checkpoints" / "latest.pt"
    command = [sys.executable, "-I", "-c", code, str(path)]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    keys, kinds, names, gan = json.loads(answer)
    assert {"gan", "ema", "optimizers", "scalers", "clock", "config", "spec", "content_hash", "values", "format"} <= set(keys)
    assert set(kinds) <= {f"builtins.{k}" for k in ("dict", "list", "tuple", "str", "int", "float", "bool", "NoneType")} | {
        "torch.Tensor"
    }
    assert gan == "reusing" and "generator.0.weight" in names and "generator.1.running_mean" in names
    assert not [name for name in names if "_orig_mod" in name or name.startswith("module.")]
