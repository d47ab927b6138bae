"""Options of the classics that cannot be, and data that does not suit them: one line that names the option, exit status 2."""

import command
import pytest
import torch
from command import refused
from tiny_gan import CONVOLUTIONAL, build, config
from tiny_gan import engine as tiny_engine

import gans
from data import Spec
from errors import UserError
from training import cli


def message_of(name, options=None, *data, **more):
    with pytest.raises(UserError) as error:
        build(name, options, *data, **more)
    text = str(error.value)
    assert "\n" not in text
    return text


REFUSED = [
    # every model of convolutions
    ("generator", "unet", "gan.generator=unet: unknown; allowed: dcgan, resnet"),
    ("discriminator", "pixel", "gan.discriminator=pixel: unknown; allowed: dcgan, resnet, patch"),
    ("upsample", "bilinear", "gan.upsample=bilinear: unknown; allowed: transposed, resize, pixel_shuffle, fir"),
    ("downsample", "max_pool", "gan.downsample=max_pool: unknown; allowed: strided, avg_pool, fir"),
    ("shortcut", "dense", "gan.shortcut=dense: unknown; allowed: none, identity, gated, egs"),
    ("norm_g", "batchnorm", "gan.norm_g=batchnorm: unknown; allowed: batch, instance, layer, group, none"),
    ("norm_d", "spectral", "gan.norm_d=spectral: unknown; allowed: batch, instance, layer, group, none"),
    ("init", "xavier", "gan.init=xavier: unknown; allowed: paper, normal, kaiming, orthogonal"),
    ("z_dim", 0, "gan.z_dim=0: must be at least 1"),
    ("width_g", 0, "gan.width_g=0: must be at least 1"),
    ("width_d", -1, "gan.width_d=-1: must be at least 1"),
    ("embedding_dim", 0, "gan.embedding_dim=0: must be at least 1"),
    ("dropout", 1.0, "gan.dropout=1.0: must be at least 0 and below 1"),
    ("dropout", -0.1, "gan.dropout=-0.1: must be at least 0 and below 1"),
    ("survival", 0.0, "gan.survival=0.0: must be above 0 and at most 1"),
    ("survival", 1.5, "gan.survival=1.5: must be above 0 and at most 1"),
    ("survival", 0.5, "gan.survival=0.5: no residual branch to drop; set gan.shortcut=identity"),
    ("patch_field", 70, "gan.patch_field=70: belongs to gan.discriminator=patch, found gan.discriminator=dcgan"),
    ("patch_loss", "each", "gan.patch_loss=each: belongs to gan.discriminator=patch"),
    ("conditioning", "film", "gan.conditioning=film: unknown; allowed: none, concat, projection"),
    # of every model
    ("discriminator_steps", 0, "gan.discriminator_steps=0: must be at least 1"),
    ("generator_batch_scale", 0.0, "gan.generator_batch_scale=0.0: must be above 0"),
    ("generator_batch_scale", -1.0, "gan.generator_batch_scale=-1.0: must be above 0"),
    ("instance_noise", -0.1, "gan.instance_noise=-0.1: must be at least 0"),
    ("feature_matching", -1.0, "gan.feature_matching=-1.0: must be at least 0"),
    ("feature_distance", "l2", "gan.feature_distance=l2: unknown; allowed: squared, l1"),
    ("adversarial_weight", -1.0, "gan.adversarial_weight=-1.0: must be at least 0"),
    ("adversarial_weight", 0.0, "gan.adversarial_weight=0: leaves G without a loss; set gan.feature_matching"),
    ("weight_clip", 0.0, "gan.weight_clip=0.0: must be above 0"),
    ("weight_clip", -0.01, "gan.weight_clip=-0.01: must be above 0"),
]
OF_EVERY_MODEL = 10


@pytest.mark.parametrize("option, value, message", REFUSED, ids=[f"{option}={value}" for option, value, _ in REFUSED])
def test_an_option_that_cannot_be(option, value, message):
    assert message_of("dcgan", {option: value}).startswith(message)


@pytest.mark.parametrize("option, value, message", REFUSED[-OF_EVERY_MODEL:])
@pytest.mark.parametrize("name", ["vanilla", "r3gan"])
def test_the_common_options_are_checked_in_every_model(name, option, value, message):
    assert message_of(name, {option: value}).startswith(message)


VANILLA = [("z_dim", 0), ("width", 0), ("depth", 0), ("embedding_dim", 0), ("conditioning", "x"), ("init", "x"), ("dropout", 1.0)]


@pytest.mark.parametrize("option, value", VANILLA)
def test_the_perceptrons_options(option, value):
    assert message_of("vanilla", {option: value}).startswith(f"gan.{option}={value}: ")


@pytest.mark.parametrize("options, resolution, words", [
    ({"attention_g": [7]}, 16, "7"), ({"attention_d": [7]}, 16, "7"), ({"attention_g": [16, 5]}, 32, "5"),
    ({"attention_d": [16]}, 16, "16"), ({"attention_d": [4], "discriminator": "patch", "patch_field": 16}, 16, "4"),
    ({"attention_d": [4], "discriminator": "resnet"}, 32, "4"),
])  # fmt: skip
def test_attention_without_a_map_of_that_size(options, resolution, words):
    """The sizes that there are stand in the message, and each of them is allowed."""
    message = message_of("dcgan", options, resolution)
    assert words in message and "gan." in message
    name = "attention_g" if "attention_g" in options else "attention_d"
    sizes = [int(word) for word in message.replace(";", ",").replace(":", ",").replace(" ", ",").split(",") if word.isdigit()]
    others = [size for size in sizes if size not in (*options[name], resolution)]
    assert others
    for size in others:
        build("dcgan", {**options, name: [size]}, resolution)


@pytest.mark.parametrize("field, resolution", [(70, 16), (142, 32), (286, 64), (None, 16)])
def test_a_patch_that_is_too_large(field, resolution):
    message = message_of("dcgan", {"discriminator": "patch", "patch_field": field}, resolution)
    assert f"{field or 70}" in message and f"{resolution}" in message and "gan." in message


@pytest.mark.parametrize("field", [0, 2, 69, -1])
def test_an_unknown_patch(field):
    message = message_of("dcgan", {"discriminator": "patch", "patch_field": field}, 64)
    assert message == f"gan.patch_field={field}: unknown; allowed: 1, 16, 34, 70, 142, 286"


def test_other_options_of_patches():
    patch = {"discriminator": "patch", "patch_field": 16}
    assert message_of("dcgan", {**patch, "patch_loss": "sum"}) == "gan.patch_loss=sum: unknown; allowed: averaged, each"
    assert message_of("dcgan", {**patch, "minibatch_stddev": True}).startswith("gan.minibatch_stddev=true: a discriminator of pa")
    assert message_of("dcgan", {**patch, "survival": 0.5}).startswith("gan.survival=0.5: no residual branch to drop")


def test_stochastic_depth_where_only_the_first_stage_is():
    """At 8 pixels DCGAN's generator has no stage with a shortcut."""
    for options in ({"shortcut": "identity", "survival": 0.5}, {"shortcut": "gated"}):
        expected = f"gan.shortcut={options['shortcut']}: acts on nothing at resolution 8"
        assert message_of("dcgan", options, 8).startswith(expected)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize("resolution", [30, 4, 15, 17, 36])
def test_a_resolution_that_halving_does_not_reach(name, resolution):
    message = message_of(name, {}, resolution, 3, 3)
    assert message.startswith(f"gan={name}: resolution {resolution} of dataset toy cannot be halved down to a map of 4 to 7 pix")
    advised = [int(word) for word in message.split("dataset.resolution=")[1].replace(" or", ",").split(",")]
    assert len(advised) == 3 and min(abs(size - resolution) for size in advised) <= max(4, resolution // 8)
    for size in advised:
        build(name, {}, size, 3, 3)


@pytest.mark.parametrize("name", [*CONVOLUTIONAL, "r3gan"])
def test_a_convolutional_model_on_points(name):
    message = message_of(name, {}, 1, 2, 3 if name in ("cgan", "acgan") else 0, kind="points")
    assert message == f"gan={name}: convolutional, and dataset toy has points, not images; use gan=vanilla"


CONDITIONAL = [("cgan", {}), ("acgan", {}), ("dcgan", {"conditioning": "concat"}), ("wgan", {"conditioning": "projection"}),
               ("vanilla", {"conditioning": "concat"})]  # fmt: skip


@pytest.mark.parametrize("name, options", CONDITIONAL)
def test_a_conditional_model_without_labels(name, options):
    message = message_of(name, options)
    assert message.startswith(f"gan={name}: needs labels, and dataset toy has none")
    way = "use an unconditional model" if name in ("cgan", "acgan") else "set gan.conditioning=none"
    assert message.endswith(f"give labelled data, or {way}")


def test_more_noise_schedules_than_there_are():
    with pytest.raises(UserError, match="schedule.instance_nois: nothing here has that name, did you mean 'instance_noise'?"):
        tiny_engine("dcgan", {}, schedule={"instance_nois": {"final": 1.0}})


# on the command line ------------------------------------------------------------------------------------------------------------


def bare(*options):
    """train.py in this process on a CPU."""
    from training.main import train

    return cli.main(train, [*options, "device=cpu", "recipe=null"])


LINES = [
    ("gan=cgan dataset=stacked_digits", "gan=cgan: needs labels, and dataset stacked_digits has none"),
    ("gan=dcgan dataset=digits dataset.resolution=30", "gan=dcgan: resolution 30 of dataset digits cannot be halved down"),
    ("gan=dcgan dataset=ring", "gan=dcgan: convolutional, and dataset ring has points, not images; use gan=vanilla"),
    ("gan=r3gan dataset=grid", "gan=r3gan: convolutional, and dataset grid has points, not images; use gan=vanilla"),
    ("gan=cgan dataset=digits gan.conditioning=adain", "gan.conditioning=adain: unknown; allowed: concat, projection"),
    ("gan=dcgan dataset=digits gan.conditoning=concat", "gan.conditoning: unknown option, did you mean 'conditioning'?"),
    ("gan=dcgan dataset=digits gan.upsample=nearest", "gan.upsample=nearest: unknown; allowed: transposed, resize"),
    ("gan=dcgan dataset=digits gan.attention_g=8", "gan.attention_g"),
    ("gan=dcgan dataset=digits gan.attention_g=[9]", "9"),
    ("gan=wgan dataset=digits penalty=wgan_gp", "gan.weight_clip=0.01 with penalty=wgan_gp: "),
    ("gan=wgan dataset=digits gan.weight_clip=0", "gan.weight_clip=0.0: must be above 0"),
    ("gan=dcgan dataset=digits gan.discriminator=patch", "70"),
    ("gan=lsgan dataset=digits loss.label_smoothing=0.1", "loss.label_smoothing: unknown option"),
    ("gan=dcgan dataset=digits loss.label_smoothing=1", "loss.label_smoothing=1.0 must be at least 0 and below 1"),
    ("gan=vanilla dataset=ring augment=diffaugment", "augment=diffaugment: it changes images, and dataset=ring is points"),
]


@pytest.mark.parametrize("line, words", LINES, ids=[line for line, _ in LINES])
def test_refused_on_the_command_line(tmp_path, monkeypatch, capsys, line, words):
    monkeypatch.chdir(tmp_path)
    if "stacked_digits" in line:
        monkeypatch.setattr("training.main.data.build", lambda options: NoLabels())
    assert words in refused(capsys, *line.split(" "), run=bare)


class NoLabels:
    spec = Spec("stacked_digits", 16, 3, 0)

    def __len__(self):
        return 999


def test_perceptrons_of_256_px_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = command.make_zip(tmp_path / "large.zip", 2, resolution=256)
    line = refused(capsys, "gan=vanilla", "dataset=zip", f"dataset.path={path}", "batch_size=2", run=bare)
    assert "256x256 pixels of 3 channels take 101 million parameters a network" in line
    assert "dataset.resolution=64" in line and "gan=dcgan" in line


def test_nothing_is_allocated_for_what_is_refused():
    """A network that no machine holds is refused by its count, not by the machine."""
    settings = config("vanilla", {"width": 100_000, "depth": 5})
    with torch.device("meta"), pytest.raises(UserError, match="million parameters"):
        gans.build(settings.gan, Spec("toy", 16, 1, 0), settings.loss, settings.penalty)
