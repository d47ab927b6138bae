"""The store, conversions, options, and scikit-learn's digits."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from sklearn.datasets import load_digits

import data
from data import DATASETS, DatasetOptions, DataSource, Spec
from errors import UserError

CONFIGS = sorted((Path(__file__).parent.parent / "configs" / "dataset").glob("*.yaml"))


def source(count=6, classes=3):
    images = torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % classes if classes else torch.full((count,), -1)
    return DataSource(images, labels, Spec("test", 4, 3, classes))


def test_batch_gives_the_indexed_images_and_labels():
    data_source = source()
    images, labels = data_source.batch(torch.tensor([4, 0, 4]))
    assert images.dtype == torch.uint8 and torch.equal(images, data_source.images[[4, 0, 4]])
    assert labels.tolist() == [1, 0, 1]
    assert len(data_source) == 6


def test_unlabelled_batch_has_no_labels():
    assert source(classes=0).batch(torch.tensor([1]))[1] is None


def test_to_moves_the_store_and_batches():
    data_source = source()
    assert data_source.to("meta") is data_source
    images, labels = data_source.batch(torch.tensor([1, 2]))
    assert images.device.type == labels.device.type == data_source.device.type == "meta"


@pytest.mark.parametrize(
    "images, labels",
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64)),  # not uint8
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),  # not the spec's channels
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),  # not one label an image
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 3])),  # a label beyond the classes
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, -1])),  # unlabelled among labelled
    ],
)
def test_store_and_spec_must_agree(images, labels):
    with pytest.raises(ValueError):
        DataSource(images, labels, Spec("test", 4, 3, 3))


def test_content_hash_is_that_of_pixels_and_labels():
    first, second = source(), source()
    assert first.content_hash == second.content_hash and len(first.content_hash) == 64
    pixels = source()
    pixels.images[5, 2, 3, 3] ^= 1
    labels = source()
    labels.labels[5] = 1
    large = DataSource(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), Spec("test", 8, 1, 1))
    small = DataSource(large.images.view(1, 4, 4, 4), large.labels, Spec("test", 4, 4, 1))  # the same bytes
    assert len({s.content_hash for s in (first, pixels, labels, source(classes=0), large, small)}) == 6


def test_conversions_are_inverse_for_every_level():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    images = data.to_float(levels)
    assert images.dtype == torch.float32 and images.min() == -1 and images.max() == 1
    assert torch.equal(data.to_uint8(images), levels)


def test_to_uint8_rounds_and_clamps():
    images = torch.tensor([-1.5, -1 + 0.4 / 127.5, -1 + 0.6 / 127.5, 0.999, 7.0])
    assert data.to_uint8(images).tolist() == [0, 0, 1, 255, 255]
    half = torch.tensor([0.3], dtype=torch.bfloat16)  # 165.87, which bfloat16 arithmetic would make 165
    assert data.to_uint8(half).tolist() == [166]


def test_conversions_refuse_the_other_kind():
    with pytest.raises(ValueError, match="uint8"):
        data.to_float(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="float"):
        data.to_uint8(torch.zeros(1, dtype=torch.uint8))


def test_too_few_images_for_a_batch():
    data.require(source(5), batch_size=5)
    with pytest.raises(UserError) as error:
        data.require(source(5), batch_size=8)
    assert str(error.value) == "dataset has 5 images, batch_size=8: lower batch_size or add images"


def test_digits_default():
    digits = data.build(DatasetOptions("digits"))
    assert digits.spec == Spec("digits", 16, 1, 10, tuple("0123456789"))
    assert digits.images.shape == (1797, 1, 16, 16)
    assert digits.labels.tolist() == load_digits().target.tolist()
    assert data.build(DatasetOptions("digits")).content_hash == digits.content_hash


def test_digits_native_resolution_is_the_original():
    digits = data.build(DatasetOptions("digits", resolution=8))
    levels = torch.from_numpy(load_digits().images)
    assert torch.equal(digits.images[:, 0].double(), (levels * 255 / 16).round())


def test_enlarged_digits_are_smooth_and_keep_their_ink():
    native = data.build(DatasetOptions("digits", resolution=8)).images.double()
    enlarged = data.build(DatasetOptions("digits", resolution=16)).images.double()
    blocks = torch.nn.functional.avg_pool2d(enlarged, 2)
    assert (blocks - native).abs().mean() < 12  # the same picture in place; moved by one pixel it would be about 30
    assert abs(enlarged.mean() - native.mean()) < 2
    nearest = native.repeat_interleave(2, -1).repeat_interleave(2, -2)
    assert enlarged.diff(dim=-1).square().mean() < 0.6 * nearest.diff(dim=-1).square().mean()
    for resolution in (4, 12, 32):
        assert data.build(DatasetOptions("digits", resolution=resolution)).images.shape[-2:] == (resolution, resolution)


def test_need_labels():
    digits = DatasetOptions("digits")
    assert data.build(digits, need_labels=True).spec.classes == 10
    dropped = data.build(digits, need_labels=False)
    assert dropped.spec == Spec("digits", 16, 1, 0) and dropped.labels.unique().tolist() == [-1]


@pytest.mark.parametrize(
    "options, message",
    [
        (DatasetOptions("digit"), "dataset.name=digit: no such dataset, did you mean 'digits'?"),
        (DatasetOptions("digits", resolution=0), "dataset.resolution=0: allowed: 1 or more"),
        (DatasetOptions("digits", workers=-1), "dataset.workers=-1: allowed: 0"),
        (DatasetOptions("digits", path="x.zip"), "dataset.path=x.zip: dataset=digits ships with scikit-learn"),
        (DatasetOptions("digits", pad_to=32), "dataset.pad_to=32: dataset=digits ships with scikit-learn and has no use for it"),
        (DatasetOptions("zip"), "dataset.path is not set: dataset=zip needs dataset.path=FILE.zip, a StyleGAN/EDM dataset zip"),
        (DatasetOptions("ffhq64"), "dataset.path is not set: dataset=ffhq64 needs .* 70,000 FFHQ images at 64x64$"),
        (DatasetOptions("imagenet32", path=""), "dataset=imagenet32 needs .*StyleGAN/EDM dataset zip.* at 32x32, with labels$"),
        (DatasetOptions("ffhq256", path="none.zip"), "dataset.path=none.zip: no such file or folder; wanted: .* 256x256"),
    ],
)
def test_bad_options_end_in_one_line(options, message):
    with pytest.raises(UserError, match=message) as error:
        data.build(options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_fit_the_options(path):
    options = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DatasetOptions), OmegaConf.load(path)))
    assert isinstance(options, DatasetOptions)
    assert options.name == path.stem and options.name in DATASETS


def test_every_dataset_has_a_config():
    assert {path.stem for path in CONFIGS} == DATASETS.keys() - {"toy"}  # which other tests register
