"""Random numbers are a function of (seed, step, phase, repeat, purpose) and of a sample's place in the global batch."""

import pytest
import torch
import toy_run
import toys

from training.batch import MicroBatch, flip
from training.draws import Draws, Reals, generator, key, latents, reseed_layers


def micro_batches(edges, draws, images=None):
    images = torch.zeros(edges[-1], 1, 2, 2) if images is None else images
    return [MicroBatch(images[a:b], None, draws, a, b, {}, keep_graph=False) for a, b in zip(edges, edges[1:])]


def test_keys_are_the_same_on_every_machine_and_distinct():
    assert key(0, "init") == 5621797835976536519 and key("layers", 1, 2) == 8517388839843086954
    keys = {key(*parts) for parts in [(0, 1), (1, 0), ("0", 1), (0, "1"), (0, 1, ""), ("01",), ((0, 1),)]}
    assert len(keys) == 7 and all(0 <= k < 2**63 for k in keys)


@pytest.mark.parametrize("kind", ["normal", "uniform", "integer"])
def test_slices_of_the_global_batch(kind):
    """Whatever the micro-batches (or the processes' shares), a sample gets the same numbers; asking twice changes nothing."""
    found = []
    for edges in ([0, 7], [0, 4, 7], [0, 1, 3, 7]):
        batches = micro_batches(edges, Draws(3, 5, "critic", 1, 7))
        parts = [batch.draw("z", (2, 3), kind, high=9) for batch in batches]
        assert all(torch.equal(batch.draw("z", (2, 3), kind, high=9), part) for batch, part in zip(batches, parts))
        found.append(torch.cat(parts))
    assert found[0].shape == (7, 2, 3)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_every_part_of_the_key_matters():
    base = (3, 5, "critic", 1)
    others = [(4, 5, "critic", 1), (3, 6, "critic", 1), (3, 5, "generator", 1), (3, 5, "critic", 2)]
    draws = [Draws(*parts, 4).draw("z", 5) for parts in [base, *others]] + [Draws(*base, 4).draw("mix", 5)]
    assert torch.equal(draws[0], Draws(*base, 4).draw("z", 5))
    for i, a in enumerate(draws):
        assert not any(torch.equal(a, b) for b in draws[i + 1 :])


def test_distributions():
    draws = Draws(0, 0, "critic", 0, 20_000)
    normal, uniform, integer = (draws.draw("x", (), kind, high=4) for kind in ("normal", "uniform", "integer"))
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    assert integer.dtype == torch.int64 and (integer.bincount(minlength=4) / 20_000 - 0.25).abs().max() < 0.02
    for arguments, message in [((), "integer"), (("binomial",), "binomial")]:
        with pytest.raises(ValueError, match=message):
            draws.draw("x", (), *(arguments or ("integer",)))


@pytest.mark.parametrize("sizes", [[7] * 20, [4, 9, 1, 30, 6], [50, 120]])
def test_reals_without_replacement_within_an_epoch(sizes):
    """Whatever the batches, also where an epoch ends inside one: positions k * 23 … (k + 1) * 23 - 1 hold every image once."""
    reals, position, seen = Reals(seed=1, size=23), 0, []
    for n in sizes:
        seen += reals.indices("critic", 0, position, n).tolist()
        position += n
    epochs = [seen[i : i + 23] for i in range(0, len(seen) - 22, 23)]
    assert len(epochs) >= 2 and all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)  # shuffled anew
    assert torch.equal(Reals(1, 23).indices("critic", 0, 20, 9), torch.tensor(seen[20:29]))  # no state: the clock says it all


def test_each_phase_and_repeat_has_its_own_stream():
    reals = Reals(seed=1, size=23)
    streams = [reals.indices(phase, repeat, 0, 23) for phase in ("critic", "generator") for repeat in (0, 1, 2)]
    streams.append(Reals(2, 23).indices("critic", 0, 0, 23))
    for i, a in enumerate(streams):
        assert not any(torch.equal(a, b) for b in streams[i + 1 :])


def test_many_streams_do_not_disturb_each_other():
    """More streams than permutations are kept."""
    reals = Reals(seed=1, size=11)
    expected = [Reals(1, 11).indices("critic", repeat, 4, 11) for repeat in range(100)]
    for _ in range(2):
        assert all(torch.equal(reals.indices("critic", repeat, 4, 11), expected[repeat]) for repeat in range(100))


def test_layers_are_reseeded():
    reseed_layers(0, 1, "critic", 0, 4)
    a = torch.rand(3)
    reseed_layers(0, 1, "critic", 0, 4)
    assert torch.equal(a, torch.rand(3))
    reseed_layers(0, 1, "critic", 0, 5)
    assert not torch.equal(a, torch.rand(3))


def test_draws_leave_the_default_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    Draws(0, 0, "critic", 0, 4).draw("z", 3)
    Reals(0, 9).indices("critic", 0, 0, 4)
    assert torch.equal(torch.rand(2), expected)


def test_flips_belong_to_samples():
    images = torch.rand(200, 1, 2, 2)
    draws = Draws(0, 0, "critic", 0, 200)
    flipped = flip(images, draws, slice(0, 200))
    mirrored = (flipped == images.flip(3)).all(dim=(1, 2, 3))
    assert torch.equal(flipped[~mirrored], images[~mirrored]) and 70 < mirrored.sum() < 130
    assert torch.equal(torch.cat([flip(images[a:b], draws, slice(a, b)) for a, b in ((0, 80), (80, 200))]), flipped)


def test_latents_are_numbered():
    z = latents(seed=3, first=0, n=6, z_dim=4)
    assert torch.equal(latents(3, 2, 3, 4), z[2:5]) and not torch.equal(latents(4, 0, 6, 4), z)
    assert torch.equal(z[1], torch.randn(4, generator=generator(3, "sample", 1)))


@pytest.mark.parametrize("xflip", [False, True])
def test_the_engine_gives_each_repeat_fresh_reals_draws_and_flips(xflip):
    """What the phases see, in a run with epochs of 50 images: streams without replacement, nothing twice."""
    seen = []

    def prepare(gan):
        loss = gan.discriminator_loss

        def spy(batch):
            seen.append((batch.images.clone(), batch.draw("z", 4)))
            return loss(batch)

        gan.discriminator_loss = spy

    dataset = {"name": "toy", "xflip": xflip}
    values = toys.values("clipped", gan={"many": 3, "few": 3}, batch_size=16, dataset=dataset)
    engine = toy_run.build_engine(values, prepare)
    for _ in range(4):
        engine.step()
    assert len(seen) == 12
    everything = engine.source.images.float() / 127.5 - 1
    everything = torch.stack([everything, everything.flip(3)]).flatten(2)
    for repeat in range(3):
        images = torch.cat([images for images, _ in seen[repeat::3]]).flatten(1)[:50]
        found = (images == everything[:, :, None]).all(3).nonzero()  # (mirrored, number, place)
        assert sorted(found[:, 1].tolist()) == list(range(50))
        assert 10 < found[:, 0].sum() < 40 if xflip else not found[:, 0].any()
    latents_seen = torch.stack([z for _, z in seen])
    assert len(latents_seen.flatten(0, 1).unique(dim=0)) == 12 * 16
    assert not any(torch.equal(seen[0][0], images) for images, _ in seen[1:])
