"""R3GAN's training step with the ADA pipe before D, penalties differentiated through it, against golden numbers from an
independent public implementation."""

from test_r3gan import PARTS, StubBatch, assert_gradients, assert_near, from_golden, golden, in_our_layout, under

from data.augment import build_augment

R3GAN = {"name": "ada", **dict.fromkeys(("brightness", "contrast", "lumaflip", "hue", "saturation"), 0.5), "cutout": 1.0}


class AugmentedBatch(StubBatch):
    def augment(self, images, purpose):
        return build_augment(R3GAN, 3)(images, None, 0.0, debug_percentile=self.percentiles[purpose])


def test_golden_training_step():
    tensors = golden("trainstep_augmented")
    states = {part: under(tensors, f"state.{part}.") for part in PARTS}
    gan = from_golden(states.get, 20.0, conditional=False)
    batches = {part: AugmentedBatch(tensors[f"in.{part}.real"], None, {"z": tensors[f"in.{part}.z"]}) for part in PARTS}
    batches["D"].percentiles = {"real": 0.35, "fake": 0.8}
    batches["G"].percentiles = {"fake": 0.35, "real": 0.8}

    terms = gan.discriminator_loss(batches["D"])
    for name, found in (("adversarial", terms["adversarial"]), *((k, batches["D"].reports[k]) for k in ("r1", "r2"))):
        assert_near(found, tensors[f"loss.D.{name}"], 1e-4)
    sum(terms.values()).mean().backward()
    expected = in_our_layout(under(tensors, "grad.D."), states["D"], "D")
    assert len(expected) >= 7
    assert_gradients(gan.discriminator, expected, 1e-3)

    gan.zero_grad(set_to_none=True)
    (term,) = gan.generator_loss(batches["G"]).values()
    assert_near(term, tensors["loss.G.adversarial"], 1e-4)
    term.mean().backward()
    assert_gradients(gan.generator, in_our_layout(under(tensors, "grad.G."), states["G"], "G"), 1e-3)
