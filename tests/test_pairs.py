"""Every loss with every penalty, and the table of pairs that make no sense."""

import pytest
from tiny_gan import assert_trains, build, engine

from errors import UserError
from gans.pairs import PAIRS
from losses import LOSSES, PENALTIES
from training import cli
from training.main import train

WEIGHTED = [name for name in PENALTIES if name != "none"]


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["dcgan", "r3gan"])
def test_every_loss_with_every_penalty(name, loss, penalty):
    """No pair is refused, all gradients are finite, and the penalty is felt."""
    driver = engine(name, {}, 8, 1, 3 if name == "r3gan" else 0, loss=loss, penalty=penalty)
    means = assert_trains(driver)
    penalties = {"none": [], "r1_r2": ["r1", "r2"], "wgan_gp": ["gp"], "dragan": ["gp"]}.get(penalty, [penalty])
    terms = {key for key in means if key.startswith("discriminator/loss_")}
    assert terms == {f"discriminator/loss_{term}" for term in ("adversarial", *penalties)}
    for term in penalties:
        assert means[f"discriminator/{term}"] > 0
    assert ("discriminator/receptive_field" in means) is False


@pytest.mark.parametrize("options", [{"one_sided": True}, {"center": 0.0}, {"center": 0.0, "one_sided": True}, {"interval": 2}])
@pytest.mark.parametrize("penalty", ["wgan_gp", "dragan"])
def test_sides_centres_and_intervals(penalty, options):
    assert_trains(engine("dcgan", {}, 8, loss="wasserstein", penalty={"name": penalty, **options}), steps=2)


@pytest.mark.parametrize("form", ["softplus", "hinge", "least_squares"])
@pytest.mark.parametrize("loss", ["relativistic", "relativistic_average"])
def test_relativistic_forms(loss, form):
    assert_trains(engine("dcgan", {}, 8, loss={"name": loss, "form": form}, penalty="r1_r2"))


# refused ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", WEIGHTED)
@pytest.mark.parametrize("name", ["wgan", "dcgan", "r3gan"])
def test_weight_clipping_with_a_penalty_is_refused(name, penalty):
    with pytest.raises(UserError) as error:
        build(name, {"weight_clip": 0.02}, 8, penalty=penalty)
    message = str(error.value)
    assert f"gan.weight_clip=0.02 with penalty={penalty}" in message and "\n" not in message
    assert "gan.weight_clip=null or penalty=none" in message
    build(name, {"weight_clip": None}, 8, penalty=penalty)
    build(name, {"weight_clip": 0.02}, 8, penalty="none")


def test_weight_clipping_with_spectral_norm_is_refused():
    with pytest.raises(UserError) as error:
        build("wgan", {"spectral_norm_d": True}, 8)
    assert "gan.weight_clip=0.01 with gan.spectral_norm_d=true" in str(error.value) and "\n" not in str(error.value)
    build("wgan", {"spectral_norm_g": True}, 8)
    build("wgan", {"spectral_norm_d": True, "weight_clip": None}, 8)


# warned of --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", WEIGHTED)
@pytest.mark.parametrize("discriminator", ["dcgan", "resnet"])
def test_batchnorm_in_a_penalised_critic_gives_one_remark(discriminator, penalty):
    (remark,) = build("dcgan", {"discriminator": discriminator, "norm_d": "batch"}, penalty=penalty).remarks()
    assert remark.startswith(f"warning: penalty={penalty} with BatchNorm in the discriminator") and "\n" not in remark
    for norm in ("layer", "instance", "group", "none"):
        assert build("dcgan", {"discriminator": discriminator, "norm_d": norm}, penalty=penalty).remarks() == []


def test_an_unbounded_critic_gives_one_remark():
    (remark,) = build("dcgan", {}, 8, loss="wasserstein").remarks()
    assert remark.startswith("warning: loss=wasserstein and nothing that bounds the critic's slope") and "\n" not in remark
    assert len(build("dcgan", {"spectral_norm_d": True, "norm_d": "layer"}, 16, loss="wasserstein").remarks()) == 1
    spectral = {"spectral_norm_d": True, "norm_d": "none"}  # a norm would divide by a spread, which nothing bounds
    bounded = (({"weight_clip": 0.01}, "none"), (spectral, "none"), ({"norm_d": "layer"}, "wgan_gp"))
    for options, penalty in bounded:
        assert build("dcgan", options, 8, loss="wasserstein", penalty=penalty).remarks() == []


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_no_other_loss_and_penalty_is_remarked_on(loss, penalty):
    """In a critic without BatchNorm, all that is left is the Wasserstein loss without a bound."""
    remarks = build("dcgan", {"norm_d": "layer"}, 8, loss=loss, penalty=penalty).remarks()
    assert len(remarks) == ((loss, penalty) == ("wasserstein", "none"))


@pytest.mark.parametrize("name", ["vanilla", "dcgan", "cgan", "acgan", "wgan", "wgan_gp", "lsgan", "r3gan"])
def test_nobodys_own_recipe_is_remarked_on(name):
    assert build(name, {}, 8, classes=3).remarks() == []


def test_the_table_is_small_and_gives_reasons():
    assert len(PAIRS) <= 6
    for pair in PAIRS:
        assert ":" in pair.text and pair.text.startswith("warning: ") is not pair.refused


def test_a_remark_is_printed_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("training.trainer.plot_losses", lambda lines, path: None)
    tiny = ["gan.z_dim=4", "gan.width_g=2", "gan.width_d=2", "total_kimg=0.024", "batch_size=8", "eval.samples=0", "recipe=null"]
    assert cli.main(train, ["gan=dcgan", "penalty=r1", *tiny, "device=cpu", "log.every_kimg=0.008"]) == 0
    out = "".join(capsys.readouterr())
    assert out.count("BatchNorm in the discriminator") == 1
