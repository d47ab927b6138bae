"""Whatever a user gets wrong ends in one line, exit status 2, and an untouched folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import command
import pytest
import torch
from command import foreign_files, refused, tree
from test_config import CHANGES

from training import cli
from training.config import flatten


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A fresh working folder, and no curves (half a second, tested elsewhere)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("training.trainer.plot_losses", lambda lines, path: None)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run on a zip, which tests only read; and that zip."""
    folder = tmp_path_factory.mktemp("finished")
    data = command.make_zip(folder / "data.zip", 24)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("training.trainer.plot_losses", lambda lines, path: None)
        assert (
            command.train("dataset=zip", f"dataset.path={data}", f"run_dir={folder / 'run'}", "checkpoint.every_kimg=0.008") == 0
        )
    return folder / "run", data


def bare(*options):
    """train.py in this process without the options of a tiny network: a resumed run has its own."""
    from training.main import train

    return cli.main(train, list(options))


# the command line -----------------------------------------------------------------------------------------------

LINES = [
    ("gan=r3gam", "gan=r3gam: unknown gan, did you mean 'r3gan'?"),
    ("dataset=cifar", "dataset=cifar: unknown dataset, did you mean 'cifar10'?"),
    ("loss=hing", "loss=hing: unknown loss, did you mean 'hinge'?"),
    ("penalty=r3", "penalty=r3: unknown penalty, allowed: dragan, none, r1, r1_r2, r2, wgan_gp"),
    ("optim=adm", "optim=adm: unknown optim, did you mean 'adam'?"),
    ("augment=adda", "augment=adda: unknown augment, did you mean 'ada'?"),
    ("augment=ada augment.adaptiv=true", "augment.adaptiv: unknown option, did you mean 'adaptive'?"),
    ("recipe=mine", "recipe=mine: unknown recipe, allowed: acgan-digits, cgan-digits, "),
    ("gan=", "gan=: unknown gan, allowed: acgan, cgan, dcgan, lsgan, r3gan, vanilla, wgan, wgan_gp"),
    ("loss=null", "loss=null: unknown loss"),
    ("gan=r3gan,r3gan", "gan=r3gan,r3gan: unknown gan"),
    ("~gan", "~gan: unknown gan"),
    ("dataset.name=cifar", "dataset.name=cifar: no such dataset"),
    ("batchsize=4", "batchsize: unknown option, did you mean 'batch_size'?"),
    ("+batchsize=4", "batchsize: unknown option, did you mean 'batch_size'?"),
    ("++batchsize=4", "batchsize: unknown option, did you mean 'batch_size'?"),
    ("+gan.widht=4", "gan.widht: unknown option, did you mean 'width'?"),
    ("++dataset.pth=x", "dataset.pth: unknown option, did you mean 'path'?"),
    ("+optim.discriminator.rl=1", "optim.discriminator.rl: unknown option"),
    ("optim.critic.lr=1", "optim.critic: this GAN has no parameter set of that name"),
    ("++schedule.lr.finale=1", "schedule.lr.finale: unknown option"),
    ("schedule.gama.final=1", "schedule.gama: nothing here has that name, did you mean 'gamma'?"),
    ("gan.width.x=1", "gan.width={'x': 1}: wrong type"),
    ("defaults=[]", "defaults: unknown option"),
    ("hydra.run.dir=x", "hydra.run.dir=x: Hydra's own settings are fixed here"),
    ("~nothing", "Could not delete from config. 'nothing' does not exist."),
    ("seed", "seed: arguments have the form option=value"),
    ("=5", "=5: arguments have the form option=value"),
    ("~", "~: arguments have the form option=value"),
    ("", "arguments have the form option=value"),
    ("5=a", "'5' is not an option name"),
    ("a..b=5", "'a..b' is not an option name"),
    ("gan.=5", "'gan.' is not an option name"),
    ("gan/width=5", "'gan/width' is not an option name"),
    ("se!ed=5", "'se!ed' is not an option name"),
    ("-x", "-x: unknown flag"),
    ("-x=5", "-x=5: unknown flag"),
    ("--hlep", "--hlep: unknown flag, did you mean '--help'?"),
    ("-5", "-5: unknown flag"),
    ("--multirun=5", "--multirun=5: unknown flag"),
    ("--cfg", "--cfg: prints the config of a run, written --cfg job"),
    ("--cfg=all", "--cfg: prints the config of a run, written --cfg job"),
    ("seed=1 seed=2", "seed=2: seed is given twice, first as seed=1"),
    ("optim.lr=1 ++optim.lr=2", "++optim.lr=2: optim.lr is given twice"),
    ("loss=hinge loss=hinge", "loss=hinge: loss is given twice"),
    ("seed=", "seed='': wrong type"),
    ("device=", "device=: unknown device"),
    ("run_dir=", "run_dir=: empty"),
    ("resume=", "resume=: empty"),
    ("seed=1,2", "To sweep over it, add --multirun"),
    ("seed=(1", "Error parsing override 'seed=(1'"),
    ("seed='1", "seed='1"),
    ("seed=${nobody}", "Interpolation key 'nobody' not found"),
    ("seed=1e3", "seed=1000.0: wrong type, a value of type int is expected"),
    ("seed=nan", "seed=nan: wrong type"),
    ("total_kimg=nan", "total_kimg=nan: must be a finite number"),
    ("total_kimg=-inf", "total_kimg=-inf: must be a finite number"),
    ("seed=99999999999999999999", "seed=99999999999999999999: too large"),
    ("seed=-1", "seed=-1: must be at least 0"),
    ("batch_size=0", "batch_size=0: must be at least 1"),
    ("batch_size=1798", "dataset has 1797 images, batch_size=1798"),
    ("precision=fp8", "precision=fp8: unknown"),
    ("logger=foo", "logger: unknown 'foo'"),
    ("logger=wandb,tensorbord", "logger: unknown 'tensorbord'; did you mean 'tensorboard'?"),
    ("device=gpu", "device=gpu: unknown device, allowed: auto, cpu, cuda, cuda:<n>, mps"),
    ("device=cuda:99", "device=cuda:99: this machine has"),
    ("device=meta", "device=meta: not supported"),
    ("optim=sgd optim.beta1=0.5", "optim.beta1: unknown option"),
    ("optim=sgd schedule.beta2.final=0.5", "schedule.beta2: nothing here has that name"),
    ("penalty=none penalty.gamma=1", "penalty.gamma: unknown option"),
    ("penalty=none schedule.gamma.kind=linear", "schedule.gamma: nothing here has that name"),
    ("loss=lsgan loss.d=1", "loss.d: unknown option"),
    ("optim.lr=-1", "optim.lr=-1.0: must not be negative"),
    ("optim.beta1=1", "optim.beta1=1.0: must be in [0, 1)"),
    ("optim.generator.beta2=2", "optim.generator.beta2=2.0: must be in [0, 1)"),
    ("gan.width=7", "gan.width=7 must be a multiple of gan.cardinality=2"),
    ("gan.cardinality=3", "gan.width=8 must be a multiple of gan.cardinality=3"),
    ("gan.width=0", "gan.width=0 must be at least 1"),
    ("gan.blocks=0", "gan.blocks=0 must be at least 1"),
    ("gan.low_precision_stages_d=-1", "gan.low_precision_stages_d=-1 must not be negative"),
    ("gan.full_width_stages=1 gan.cardinality=1", "gan.cardinality=1 cannot be halved 2 times"),
    ("gan.full_width_stages=1 gan.width=6", "gan.width=6 cannot be halved 2 times"),
    ("gan.width=10000000000000", "gan=r3gan: too large for this machine"),
    ("gan.width=1000000000000000000", "gan=r3gan: too large for this machine"),
    ("gan.z_dim=1000000000000000", "gan=r3gan: too large for this machine"),
    ("dataset.resolution=12", "gan=r3gan needs a power-of-two resolution from 8; dataset digits has 12"),
    ("dataset.resolution=4", "gan=r3gan needs a power-of-two resolution from 8"),
    ("dataset.resolution=0", "dataset.resolution=0: allowed: 1 or more pixels"),
    ("dataset.workers=-1", "dataset.workers=-1: allowed: 0"),
    ("dataset.path=x.zip", "dataset.path=x.zip: dataset=digits ships with scikit-learn"),
    ("dataset=zip", "dataset.path is not set: dataset=zip needs dataset.path=FILE.zip"),
    ("dataset=zip dataset.path=", "dataset.path is not set"),
    ("dataset=zip dataset.path=null", "dataset.path is not set"),
    ("dataset=zip dataset.path=no.zip", "dataset.path=no.zip: no such file or folder"),
    ("dataset=zip dataset.path=.", "dataset.path=. is a folder"),
    ("dataset=ffhq256", "dataset.path is not set: dataset=ffhq256 needs dataset.path=FILE.zip"),
    ("dataset=cifar10 dataset.path=no", "dataset.path=no: no such file or folder"),
]  # fmt: skip


@pytest.mark.parametrize("line, message", LINES, ids=[line or "nothing" for line, _ in LINES])
def test_refused(capsys, line, message):
    assert message in refused(capsys, *line.split(" "))


NAMES = [
    "a b",
    "a=b",
    "it's",
    'say "x"',
    "a,b",
    "a\\b",
    "\\'",
    "end\\",
    "[a]",
    "{a}",
    "#%&(",
    "käse",
    "5",
    "true",
    " lead",
    "'",
    "a:b",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_path_arrives_as_typed(name):
    options = ("dataset.path", "dataset.download_dir", "run_dir", "resume")
    values = flatten(cli.compose(cli.parse([f"{option}={name}" for option in options])))
    assert [values[option] for option in options] == [name] * 4


def test_paths_with_everything_in_them(here, capsys):
    folder = here / "a b=c,d'e\"f"
    folder.mkdir()
    data = command.make_zip(folder / "[5] {im}ages.zip", 5)
    path = data.relative_to(here)
    assert "dataset has 5 images, batch_size=8" in refused(capsys, "dataset=zip", f"dataset.path={path}")
    assert f"dataset.path={path}.zip: no such file" in refused(capsys, "dataset=zip", f"dataset.path={path}.zip")
    assert f"resume={folder}: holds no run" in refused(capsys, f"resume={folder}", run=bare)
    (folder / "log.jsonl").touch()
    assert f"run_dir={folder}: holds a run already" in refused(capsys, f"run_dir={folder}")


def test_paths_with_a_home_and_with_an_interpolation(here, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    (here / "run-3").mkdir()
    (here / "run-3" / "log.jsonl").touch()
    for path in ("~/run-3", "run-${seed}", "'run-${seed}'"):
        assert "holds a run already" in refused(capsys, "seed=3", f"run_dir={path}")


def test_data_that_does_not_fit(here, capsys):
    command.make_zip(here / "five.zip", 5)
    command.make_zip(here / "odd.zip", 9, resolution=12)
    (here / "text.zip").write_text("no zip")
    (here / "cut.zip").write_bytes((here / "five.zip").read_bytes()[:-30])
    (here / "empty.zip").touch()

    def told(*options):
        return refused(capsys, "dataset=zip", *options)

    assert "dataset has 5 images, batch_size=8: lower batch_size or add images" in told("dataset.path=five.zip")
    assert "gan.conditional=true needs labels, and dataset zip has none" in told(
        "dataset.path=five.zip", "batch_size=4", "gan.conditional=true")  # fmt: skip
    assert "needs a power-of-two resolution from 8; dataset zip has 12: set dataset.resolution, e.g. 8" in told(
        "dataset.path=odd.zip"
    )
    for name in ("text.zip", "cut.zip", "empty.zip"):
        assert f"dataset.path={name} is no zip file, or a truncated one" in told(f"dataset.path={name}")


def test_run_folders_that_cannot_be(here, capsys):
    (here / "file").write_text("x")
    assert "run_dir=file: cannot write there" in refused(capsys, "run_dir=file")
    assert "run_dir=file/x/y: cannot write there (Not a directory)" in refused(capsys, "run_dir=file/x/y")
    assert "run_dir=" in refused(capsys, f"run_dir={'x' * 300}")
    (here / "runs").write_text("x")
    assert "run_dir=runs/r3gan-digits-0: cannot write there" in refused(capsys)
    for content in ("config.yaml", "log.jsonl", "checkpoints/latest.pt"):
        run = here / content.replace("/", "-")
        (run / content).parent.mkdir(parents=True)
        (run / content).touch()
        assert f"run_dir={run.name}: holds a run already; go on with resume={run.name}" in refused(capsys, f"run_dir={run.name}")


def test_a_mistake_does_not_wait_for_torch(here):
    """Misspelt choices and flags are answered before the slow import."""
    code = "import sys; sys.argv[1:] = ['gan=foo']; from training import cli; print(cli.main(None), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=command.ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False"] and done.stderr.startswith("error: gan=foo")


def test_sweeps_are_checked_before_the_first_run(capsys):
    assert "gan=foo: unknown gan" in refused(capsys, "-m", "gan=r3gan,foo")
    assert "run_dir=x: 2 runs cannot share it" in refused(capsys, "-m", "seed=0,1", "run_dir=x")
    assert "seed=[1: " in refused(capsys, "-m", "seed=[1")
    assert "-x: unknown flag" in refused(capsys, "-m", "seed=0,1", "-x")
    assert "seed: arguments have the form" in refused(capsys, "-m", "seed")


# resume -------------------------------------------------------------------------------------------------------------------


# test_config.py tries every option; here, some on the way from the command line
@pytest.mark.parametrize("name", ["gan.width", "dataset.xflip", "penalty.gamma", "optim.lr", "schedule.lr.final", "eval.samples"])
def test_resume_refuses_a_changed_option_by_name(finished, capsys, name):
    run, _ = finished
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}
    message = refused(capsys, f"resume={run}", f"{name}={CHANGES[name]}", run=bare)
    assert f" {name}=" in message and "the run was started with" in message and "on resume only total_kimg, " in message
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")} == before


def test_resume_refuses_other_groups_and_folders(finished, here, capsys):
    run, _ = finished

    def told(*options):
        return refused(capsys, f"resume={run}", *options, run=bare)

    assert "dataset=digits: the run was started with dataset=zip, which cannot change on resume" in told("dataset=digits")
    assert "loss=hinge: the run was started with loss=relativistic" in told("loss=hinge")
    assert "optim=sgd: the run was started with optim=adam" in told("optim=sgd")
    assert "recipe=r3gan-digits: a resumed run keeps its own config" in told("recipe=r3gan-digits")
    assert "foo: unknown option" in told("foo=1")
    assert "optim.generator.lr=0.1: the run was started with" in told("optim.generator.lr=0.1")
    assert "schedule.weight_decay.final=1.0: the run was started with" in told("schedule.weight_decay.final=1")
    assert f"run_dir={here / 'other'}: a resumed run goes on in its own folder" in told(f"run_dir={here / 'other'}")
    assert "run_dir=: a resumed run goes on in its own folder" in told("run_dir=")
    assert "total_kimg=-1.0: must be at least 0" in told("total_kimg=-1")
    assert "micro_batch=0: must be at least 1" in told("micro_batch=0")


def test_resume_of_what_is_no_run(finished, here, capsys):
    run, _ = finished

    def told(path, content=None):
        if content is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(content)
        return refused(capsys, f"resume={path}", run=bare)

    assert "resume=nowhere: no such run folder or checkpoint" in told("nowhere")
    assert "resume=.: holds no run (neither config.yaml nor checkpoints/latest.pt)" in told(".")
    assert "resume=loose.pt: a checkpoint outside a run's checkpoints folder" in told("loose.pt", b"x")
    for content in (b"", b"\xff\xfe", b"- 1", b"a: [", b"gan: {name: r3gan}", b"just text", b"gan: 5\ndataset: 5"):
        Path("run").mkdir(exist_ok=True)
        Path("run/config.yaml").write_bytes(content)
        assert "config" in refused(capsys, "resume=run", run=bare)
    whole = (run / "checkpoints" / "latest.pt").read_bytes()
    for name, content in foreign_files(whole).items():
        assert f"x/checkpoints/{name}.pt: not a checkpoint of this project" in told(f"x/checkpoints/{name}.pt", content)
    state = torch.load(run / "checkpoints" / "latest.pt", weights_only=True)
    for missing in ("config", "clock", "gan", "ema", "optimizers", "best", "log"):
        torch.save({k: v for k, v in state.items() if k != missing}, "x/checkpoints/part.pt")
        assert "of this version of the code" in told("x/checkpoints/part.pt") or "not fit" in told("x/checkpoints/part.pt")
    other = {**state, "gan": {k: v[:1] if v.ndim else v for k, v in state["gan"].items()}}
    torch.save(other, "x/checkpoints/other.pt")
    assert "resume=x: does not fit this version of the code" in told("x/checkpoints/other.pt")


def test_data_changed_under_the_same_path(here, capsys):
    data = command.make_zip(here / "data.zip", 8)
    assert command.train("dataset=zip", f"dataset.path={data}", "run_dir=run") == 0
    capsys.readouterr()
    command.make_zip(data, 8, seed=1)
    message = refused(capsys, "resume=run", "total_kimg=0.016", run=bare)
    assert f"dataset.path={data}: not the images and labels that the run was started with" in message
    command.make_zip(data, 8, labels=[0, 1] * 4)
    assert "not the images and labels" in refused(capsys, "resume=run", "total_kimg=0.016", run=bare)
    data.unlink()
    assert "no such file" in refused(capsys, "resume=run", "total_kimg=0.016", run=bare)
    command.make_zip(data, 8)
    assert bare("resume=run", "total_kimg=0.016") == 0


def test_scripts_in_processes_of_their_own(here):
    for name, words, message in (
        ("train.py", ["gan=r3gan", "optim.lr=fast"], "error: optim.lr='fast': wrong type, a value of type float is expected"),
        ("sample.py", ["checkpoint=nowhere"], "error: nowhere: no such file or folder"),
    ):
        done = command.script(name, *words, cwd=here)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith(message) and done.stderr.count("\n") == 1
    assert tree(here) == []
