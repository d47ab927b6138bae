"""Feature extractors: what they need, what they say when it is missing, and that what they learn is kept for the right data."""

from urllib.error import URLError

import pytest
import tiny_extractor  # noqa: F401 (registers "tiny")
import torch
from torch_fidelity import calculate_metrics

import data
from data import DatasetOptions, DataSource, Spec
from errors import UserError
from metrics import cache, classifier, extractors
from metrics.classifier import classifier_for
from metrics.extractors import PUBLISHED, Request, Unavailable, at_hand, make
from metrics.score import features_of, obstacle, reference_indices, reference_of

CPU = torch.device("cpu")


def coloured(n=120, channels=3, seed=0, size=16, labelled=True):
    """Three classes that differ in the side on which they are bright."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    images = torch.randint(0, 120, (n, channels, size, size), generator=rng)
    third = size // 3 + 1
    for i, label in enumerate(labels.tolist()):
        images[i, :, :, label * third : (label + 1) * third] += 100
    labels = labels if labelled else torch.full((n,), -1)
    return DataSource(images.to(torch.uint8), labels, Spec("stripes", size, channels, 3 if labelled else 0))


@pytest.fixture
def quick(monkeypatch):
    for name, value in {"IMAGES_SEEN": 4000, "BATCH": 40, "WIDTH": 8}.items():
        monkeypatch.setattr(classifier, name, value)


def said():
    lines = []
    return lines, lines.append


# the classifier -------------------------------------------------------------------------------------------------------


def test_classifier_learns_and_is_honest_about_it(quick, tmp_path):
    source, (lines, say) = coloured(), said()
    judge = classifier_for(source.images, source.labels, 3, source.content_hash, tmp_path, say)
    assert judge.held_out == 12 and judge.held_out_accuracy == 1.0
    features, logits = judge(source.images[:9])
    assert features.shape == (9, 32) and logits.argmax(dim=1).tolist() == source.labels[:9].tolist()
    assert "training a classifier on 120 labelled images" in lines[0] and "100.0% of 12 held-out" in lines[1]

    noise = coloured(seed=1)
    noise.images.random_(0, 255, generator=torch.Generator().manual_seed(2))
    assert classifier_for(noise.images, noise.labels, 3, "noise", None, say).held_out_accuracy < 0.8  # nothing to learn


def test_classifier_is_kept_for_this_data_only(quick, tmp_path, monkeypatch):
    source, (lines, say) = coloured(), said()
    first = classifier_for(source.images, source.labels, 3, source.content_hash, tmp_path, say)
    again = classifier_for(source.images, source.labels, 3, source.content_hash, tmp_path, say)
    assert len(lines) == 2 and again.weights_hash == first.weights_hash and again.held_out_accuracy == first.held_out_accuracy
    assert torch.equal(again(source.images[:5])[1], first(source.images[:5])[1])
    other = coloured(seed=1)
    assert classifier_for(other.images, other.labels, 3, other.content_hash, tmp_path, say).weights_hash != first.weights_hash
    monkeypatch.setattr(classifier, "VERSION", classifier.VERSION + 1)
    classifier_for(source.images, source.labels, 3, source.content_hash, tmp_path, say)
    assert len(lines) == 6
    assert len(list(tmp_path.iterdir())) == 3


def test_a_broken_file_is_made_anew(quick, tmp_path):
    source, (lines, say) = coloured(), said()
    first = classifier_for(source.images, source.labels, 3, source.content_hash, tmp_path, say)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    again = classifier_for(source.images, source.labels, 3, source.content_hash, tmp_path, say)
    assert len(lines) == 4 and again.weights_hash == first.weights_hash  # and training is deterministic


def test_training_disturbs_nothing(quick):
    source = coloured(60)
    torch.manual_seed(123)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.inference_mode():
        classifier_for(source.images, source.labels, 3, "x", None, lambda text: None)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 48)])
def test_classifier_takes_any_size(quick, channels, size):
    source = coloured(90, channels, size=size)
    judge = classifier_for(source.images, source.labels, 3, "x", None, lambda text: None)
    assert judge.held_out_accuracy == 1.0
    assert classifier.prepare(source.images).shape == (90, channels, 32, 32)


def test_classifier_of_very_few_images(quick):
    for n in (3, 1):
        source = coloured(n)
        assert classifier_for(source.images, source.labels, 3, "x", None, lambda text: None).held_out == 1


def test_classifier_needs_labels():
    with pytest.raises(Unavailable, match="extractor=classifier: it learns from labels and the data has none"):
        make("classifier", Request(coloured(labelled=False), CPU))


# the others of this project ------------------------------------------------------------------------------------------


def test_random_features_are_the_same_everywhere_and_tell_sets_apart():
    source = coloured()
    torch.manual_seed(4)
    state = torch.get_rng_state()
    one = make("random", Request(source, CPU))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    two = make("random", Request(source, CPU))
    features, logits = one(source.images)
    assert logits is None and torch.equal(features, two(source.images)[0]) and features.std(dim=0).min() > 0
    assert one.protocol["weights_hash"] == two.protocol["weights_hash"] and "one table only" in one.protocol["warning"]
    gray = make("random", Request(coloured(channels=1), CPU))
    assert gray.protocol["weights_hash"] != one.protocol["weights_hash"]


def test_digits_judge_is_called_a_smoke_test_elsewhere():
    home = make("digits", Request(data.build(DatasetOptions("digits")), CPU))
    away = make("digits", Request(coloured(), CPU))
    assert "warning" not in home.protocol and home.labels
    assert "smoke test" in away.protocol["warning"] and not away.labels
    features, logits = away(coloured(12).images)
    assert features.shape == (12, 64) and logits.shape == (12, 10)
    assert home.protocol["held_out_accuracy"] > 0.98


def test_obstacles():
    labelled = make("digits", Request(data.build(DatasetOptions("digits")), CPU))
    away, plain = make("digits", Request(coloured(), CPU)), make("random", Request(coloured(), CPU))
    assert all(obstacle(metric, labelled, True) is None for metric in ("fid", "is", "intra", "recognised"))
    assert "needs labelled reference images" in obstacle("intra", labelled, False)
    assert obstacle("is", plain, True) == "metrics=is needs class scores and extractor=random has none"
    assert "knows the data's classes" in obstacle("recognised", away, True)


def test_images_are_checked():
    for bad in (torch.zeros(2, 3, 8, 8), torch.zeros(2, 2, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="wanted: uint8"):
            make("random", Request(None, CPU))(bad)


# torch-fidelity's ----------------------------------------------------------------------------------------------------


def test_unknown_extractor():
    with pytest.raises(UserError, match="extractor=inceptoin: unknown, did you mean 'inception'"):
        make("inceptoin", Request(None, CPU))
    with pytest.raises(UserError, match="did you mean 'clip-rn50'"):
        make("clip-rn5", Request(None, CPU))


@pytest.mark.parametrize(
    ("name", "option", "file"),
    [
        ("inception", "inception_weights", "weights-inception-2015-12-05-6726825d.pth"),
        ("vgg16", "vgg_weights", "vgg16-397923af.pth"),
    ],
)
def test_weights_that_are_not_here(name, option, file, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def offline(url, path, hash_prefix):
        assert file in url and hash_prefix == PUBLISHED[name].sha256
        raise URLError("Name or service not known")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    assert not at_hand(name, {})
    with pytest.raises(Unavailable) as error:
        make(name, Request(None, CPU))
    message = str(error.value)
    assert "\n" not in message and f"put it at {tmp_path / 'hub' / 'checkpoints' / file}" in message
    assert f"extractor={name}: {file} is not here" in message and f"{option}=FILE" in message

    with pytest.raises(Unavailable, match=f"{option}=.*nowhere.pth: no such file; wanted: {file}"):
        make(name, Request(None, CPU, weights={name: str(tmp_path / "nowhere.pth")}))
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"half a download")
    with pytest.raises(Unavailable, match=rf"{option}={broken}: corrupt or another file, its SHA-256 is [0-9a-f]{{8}}…"):
        make(name, Request(None, CPU, weights={name: str(broken)}))
    (tmp_path / "hub" / "checkpoints" / file).write_bytes(b"half a download")
    assert at_hand(name, {})
    with pytest.raises(Unavailable, match="corrupt or another file"):
        make(name, Request(None, CPU))


@pytest.mark.slow
def test_inception_as_torch_fidelity_has_it(tmp_path, monkeypatch):
    """With weights of the right names and shapes (random ones): the library's FID, KID and IS through our own path."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    from metrics.score import METRICS
    from training.pictures import ImageFolderWriter

    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", lambda *args, **more: {})
        patch.setattr(FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
        net = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], feature_extractor_weights_path="x")
    file = tmp_path / "inception.pth"
    torch.save(net.state_dict(), file)
    monkeypatch.setitem(PUBLISHED, "inception", type(PUBLISHED["inception"])(
        **{**vars(PUBLISHED["inception"]), "sha256": extractors._sha256(file)[:8]}))  # fmt: skip
    torch.manual_seed(1)
    inception = make("inception", Request(None, CPU, weights={"inception": str(file)}))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)  # making it draws nothing of the caller's
    sets = [coloured(14, seed=1).images, coloured(12, seed=2).images + 20]
    fake, real = (features_of([inception], len(s), lambda a, b, s=s: s[a:b], batch_size=5)["inception"] for s in sets)
    folders = []
    for number, images in enumerate(sets):
        folders.append(str(tmp_path / str(number)))
        with ImageFolderWriter(folders[-1]) as writer:
            writer.write(images.permute(0, 2, 3, 1).numpy())
    theirs = calculate_metrics(
        input1=folders[0], input2=folders[1], fid=True, kid=True, isc=True, cuda=False, kid_subset_size=6, cache=False,
        verbose=False, save_cpu_ram=True, feature_extractor_weights_path=str(file),
    )  # fmt: skip
    assert METRICS["fid"].compute(fake, real, 0)["frechet"] == pytest.approx(theirs["frechet_inception_distance"], rel=1e-5)
    assert METRICS["kid"].compute(fake, real, 0)["kid"] == pytest.approx(theirs["kernel_inception_distance_mean"], rel=1e-4)
    assert METRICS["is"].compute(fake, real, 0)["is"] == pytest.approx(theirs["inception_score_mean"], rel=1e-5)
    assert inception.protocol["weights_sha256"] == extractors._sha256(file)


# reference statistics ------------------------------------------------------------------------------------------------


def counting(extractor):
    """The extractor, and a list that grows with every image it sees."""
    seen, compute = [], extractor.compute
    extractor.compute = lambda images: (seen.extend([0] * len(images)), compute(images))[1]
    return extractor, seen


def test_reference_is_kept_for_exactly_what_it_is_of(tmp_path):
    source = coloured()
    tiny, seen = counting(make("tiny", Request(None, CPU)))
    first = reference_of(tiny, source, None, tmp_path)
    again = reference_of(tiny, source, None, tmp_path, batch_size=7)
    assert len(seen) == 120 and torch.equal(first.features, again.features) and torch.equal(first.labels, again.labels)
    assert torch.equal(first.statistics.covariance, again.statistics.covariance)
    reference_of(tiny, source, 50, tmp_path)
    assert len(seen) == 170
    reference_of(make("random", Request(source, CPU)), source, None, tmp_path)
    other = coloured()
    other.images[3, 0, 0, 0] += 1  # one pixel
    changed = reference_of(tiny, other, None, tmp_path)
    assert len(seen) == 290 and not torch.equal(changed.features, first.features)
    renamed = DataSource(source.images, source.labels, Spec("another name", 16, 3, 3))
    reference_of(tiny, renamed, None, tmp_path)
    assert len(seen) == 290  # the same data under another name
    assert not list(tmp_path.glob(".*"))


def test_reference_of_other_weights_under_the_same_name(tmp_path):
    source, tiny = coloured(), make("tiny", Request(None, CPU))
    reference_of(tiny, source, None, tmp_path)
    tiny.protocol["weights_hash"] = "other"
    tiny, seen = counting(tiny)
    reference_of(tiny, source, None, tmp_path)
    assert len(seen) == 120


def test_reference_count_is_a_fixed_random_part():
    chosen = reference_indices(1000, 100)
    assert torch.equal(chosen, reference_indices(1000, 100)) and len(chosen.unique()) == 100
    assert 350 < chosen.double().mean() < 650 and torch.equal(chosen, chosen.sort().values)
    assert torch.equal(reference_indices(10), torch.arange(10))


def test_reference_remembers_which_images_it_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("metrics.score.KEPT", 30)
    source, tiny = coloured(), make("tiny", Request(None, CPU))
    for found in (reference_of(tiny, source, 90, tmp_path), reference_of(tiny, source, 90, tmp_path)):
        assert found.statistics.n == 90 and len(found.features) == 30
        assert torch.allclose(tiny(source.images[found.indices])[0], found.features, atol=1e-6)
        assert torch.equal(source.labels[found.indices], found.labels)


def test_cache_that_cannot_be_written_is_said(tmp_path):
    lines, say = said()
    (tmp_path / "file").write_text("")
    cache.write(tmp_path / "file", "x", {"a": 1}, {"b": torch.ones(2)}, say)
    assert len(lines) == 1 and "cannot keep" in lines[0]
    cache.write(None, "x", {}, {}, say)
    assert cache.read(None, "x", {}) is None and len(lines) == 1


def test_cache_answers_only_its_own_key(tmp_path):
    cache.write(tmp_path, "x", {"a": 1}, {"b": torch.ones(2)})
    assert torch.equal(cache.read(tmp_path, "x", {"a": 1})["b"], torch.ones(2))
    assert cache.read(tmp_path, "x", {"a": 2}) is None and cache.read(tmp_path, "y", {"a": 1}) is None
    (file,) = tmp_path.iterdir()
    file.rename(cache.path_of(tmp_path, "x", {"a": 2}))
    assert cache.read(tmp_path, "x", {"a": 2}) is None  # a file under another's name
