"""gan=cgan (arXiv:1411.1784; projection: arXiv:1802.05637): G and D are told the label."""

import pytest
import torch
from stub_batch import StubBatch, images
from tiny_gan import assert_trains, build, engine

from errors import UserError

LABELS = torch.tensor([0, 1, 2, 0])


def cgan(options=None, **data):
    return build("cgan", options, **{"resolution": 16, "classes": 3, **data})


@pytest.mark.parametrize("generator", ["dcgan", "resnet"])
def test_the_image_depends_on_the_label_and_on_z(generator):
    gan = cgan({"generator": generator}).eval()
    z = torch.randn(2, 4)
    one, other = (gan.sample(z, torch.tensor([k, k])) for k in (0, 1))
    assert (one - other).abs().amax((1, 2, 3)).min() > 0
    assert not torch.equal(one[0], one[1])
    with pytest.raises(ValueError, match="needs labels"):
        gan.sample(z)


def test_gs_label_is_a_learnt_vector_beside_z():
    gan = cgan({"embedding_dim": 5, "z_dim": 4})
    vectors = [p for p in gan.generator.parameters() if p.shape == (3, 5)]
    assert len(vectors) == 1 and gan.z_dim == 4
    first = next(m for m in gan.generator.modules() if isinstance(m, torch.nn.ConvTranspose2d))
    assert first.weight.shape[0] == 4 + 5
    with torch.no_grad():
        vectors[0][1] = vectors[0][0]
    z = torch.randn(2, 4)
    gan.eval()
    assert torch.equal(gan.sample(z, torch.tensor([0, 0])), gan.sample(z, torch.tensor([1, 1])))


@pytest.mark.parametrize("conditioning", ["concat", "projection"])
@pytest.mark.parametrize("discriminator", ["dcgan", "resnet"])
def test_the_logit_depends_on_the_label(conditioning, discriminator):
    gan = cgan({"conditioning": conditioning, "discriminator": discriminator}).eval()
    x = images()
    a, b, c = (gan.discriminator(x, torch.full((4,), k)) for k in range(3))
    assert all((one - other).abs().min() > 0 for one, other in ((a, b), (a, c), (b, c)))


def test_concat_gives_the_label_as_constant_channels():
    gan = cgan({"embedding_dim": 5}, channels=3)
    first = next(m for m in gan.discriminator.modules() if isinstance(m, torch.nn.Conv2d))
    assert first.weight.shape[1] == 3 + 5
    seen = []
    first.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    gan.discriminator(images(channels=3), LABELS)
    extra = seen[0][:, 3:]
    assert (extra == extra[:, :, :1, :1]).all() and torch.equal(extra[0], extra[3]) and not torch.equal(extra[0], extra[1])


@pytest.mark.parametrize("discriminator", ["dcgan", "resnet"])
def test_projection_adds_the_inner_product_with_the_labels_vector(discriminator):
    """Logits of two labels differ by <features, v_a - v_b>, features summed over the map that the logit sees."""
    gan = cgan({"conditioning": "projection", "discriminator": discriminator}).eval()
    x = images()
    features = gan.discriminator.features(x, LABELS)
    assert torch.equal(features, gan.discriminator.features(x, LABELS.flip(0)))  # no label on the way there
    pooled = features if features.ndim == 2 else features.sum((2, 3))
    (vectors,) = [p for p in gan.discriminator.parameters() if p.shape == (3, pooled.shape[1])]
    a, b = (gan.discriminator(x, torch.full((4,), k)) for k in (0, 2))
    torch.testing.assert_close(a - b, pooled @ (vectors[0] - vectors[2]), atol=1e-6, rtol=1e-4)


def test_both_phases_see_the_labels_of_their_reals():
    """The loss is of D(x, y) and D(G(z, y), y): with other labels it is another."""
    for conditioning in ("concat", "projection"):
        gan = cgan({"conditioning": conditioning, "norm_g": "none", "norm_d": "none"})
        batch, others = (StubBatch(images(), labels) for labels in (LABELS, LABELS.roll(1)))
        terms = [gan.discriminator_loss(b)["adversarial"] for b in (batch, others)]
        assert (terms[0] - terms[1]).abs().max() > 0
        softplus = torch.nn.functional.softplus
        fake = gan.generator(batch.draws["z"], LABELS)
        expected = softplus(-gan.discriminator(batch.images, LABELS)) + softplus(gan.discriminator(fake, LABELS))
        torch.testing.assert_close(terms[0], expected)
        torch.testing.assert_close(gan.generator_loss(batch)["adversarial"], softplus(-gan.discriminator(fake, LABELS)))


@pytest.mark.parametrize("conditioning", ["concat", "projection"])
def test_label_vectors_of_both_networks_are_trained(conditioning):
    driver = engine("cgan", {"conditioning": conditioning}, classes=3)
    before = {name: p.detach().clone() for name, p in driver.gan.named_parameters() if p.shape[0] == 3 and p.ndim == 2}
    assert len(before) == 2
    assert_trains(driver)
    assert all(not torch.equal(driver.gan.get_parameter(name), p) for name, p in before.items())


@pytest.mark.parametrize("name", ["cgan", "acgan"])
def test_data_without_labels_is_refused(name):
    with pytest.raises(UserError) as error:
        build(name, {})
    assert str(error.value).startswith(f"gan={name}: needs labels, and dataset toy has none") and "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["film", "Concat"])
def test_other_conditionings_are_refused(word):
    with pytest.raises(UserError, match=f"^gan.conditioning={word}: unknown; allowed: concat, projection$"):
        cgan({"conditioning": word})
