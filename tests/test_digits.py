"""The digits classifier: it recognises digits, only digits, and disturbs nobody."""

import pytest
import torch

import data
from data import DatasetOptions
from errors import UserError
from metrics.digits import DigitsClassifier, digits_classifier, recognised


def held_out(resolution=16):
    digits = data.build(DatasetOptions("digits", resolution=resolution))
    index = digits_classifier().held_out
    return data.to_float(digits.images[index]), digits.labels[index]


def test_held_out_digits_are_recognised():
    classifier = digits_classifier()
    assert classifier.held_out_accuracy >= 0.985
    assert recognised(classifier, *held_out()) == classifier.held_out_accuracy
    assert len(classifier.held_out.unique()) == 359


@pytest.mark.parametrize("resolution", [8, 28, 32])
def test_any_size_and_channels(resolution):
    images, labels = held_out(resolution)
    assert recognised(digits_classifier(), images, labels) >= 0.97
    assert recognised(digits_classifier(), images.repeat(1, 3, 1, 1), labels) >= 0.97


def test_noise_and_shuffled_labels_score_as_chance():
    generator = torch.Generator().manual_seed(0)
    noise, labels = torch.rand(2000, 1, 16, 16, generator=generator) * 2 - 1, torch.arange(2000) % 10
    assert 0.07 < recognised(digits_classifier(), noise, labels) < 0.13
    images, labels = held_out()
    shuffled = labels[torch.randperm(len(labels), generator=generator)]
    assert 0.05 < recognised(digits_classifier(), images, shuffled) < 0.17


def test_a_digit_moved_by_a_pixel_is_still_that_digit():
    images, labels = held_out()
    moved = torch.nn.functional.pad(images, (1, 0, 1, 0), value=-1.0)[..., :16, :16]
    assert recognised(digits_classifier(), moved, labels) >= 0.95


def test_training_is_deterministic_and_disturbs_nothing():
    threads = torch.get_num_threads()
    torch.manual_seed(123)
    state = torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with torch.inference_mode():
            again = DigitsClassifier()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert again.weights_hash == digits_classifier().weights_hash


def test_one_classifier_a_process():
    assert digits_classifier() is digits_classifier()


def test_features_are_the_penultimate_layer():
    classifier, (images, _) = digits_classifier(), held_out()
    features = classifier.features(images[:7].requires_grad_())
    assert features.shape == (7, 64) and features.dtype == torch.float32 and not features.requires_grad
    assert torch.equal(classifier.network[-1](features).argmax(1), classifier.predict(images[:7]))


def test_predictions_do_not_depend_on_the_company():
    classifier, (images, _) = digits_classifier(), held_out()
    images = images.repeat(4, 1, 1, 1)[:1100]  # more than one internal part
    features = classifier.features(images)
    assert torch.allclose(features[1050:1052], classifier.features(images[1050:1052]), atol=1e-4)
    assert torch.equal(classifier.predict(images), torch.cat([classifier.predict(part) for part in images.split(301)]))


def test_prepare():
    red = torch.full((1, 3, 16, 16), -1.0)
    red[:, 0] = 1
    assert DigitsClassifier.prepare(red).mean().item() == pytest.approx(2 * 0.299 - 1, abs=1e-6)
    grain = torch.randint(2, (1, 1, 64, 64), generator=torch.Generator().manual_seed(0)) * 2.0 - 1  # std 1
    assert DigitsClassifier.prepare(grain).std() < 0.35  # finer than 16 px can show: averaged, not sampled
    assert DigitsClassifier.prepare(torch.full((2, 1, 16, 16), 9.0)).max() == 1
    for wrong in (torch.zeros(2, 2, 16, 16), torch.zeros(1, 16, 16), torch.zeros(1, 1, 16, 16, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="wanted: float"):
            DigitsClassifier.prepare(wrong)


def test_broken_images_are_never_recognised():
    images, labels = held_out()
    broken = images[:10].clone()
    broken[:, :, 8, 8] = float("nan")
    assert recognised(digits_classifier(), broken, labels[:10]) == 0
    assert digits_classifier().predict(broken).tolist() == [-1] * 10


def test_one_label_an_image():
    images, labels = held_out()
    for bad in (labels[:5], labels.unsqueeze(1)):
        with pytest.raises(ValueError, match="one label an image"):
            recognised(digits_classifier(), images, bad)
    with pytest.raises(ValueError, match="at least one"):
        recognised(digits_classifier(), images[:0], labels[:0])


def test_a_resolution_beyond_memory_is_refused_before_it_is_tried():
    for resolution in (100_000, 9 * 10**18):
        with pytest.raises(UserError, match="lower dataset.resolution"):
            data.build(DatasetOptions(name="digits", resolution=resolution))
