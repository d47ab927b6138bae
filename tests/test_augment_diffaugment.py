"""DiffAugment: properties of each transform."""

import pytest
import torch
from test_augment import Draws, images

from data.augment import build_augment
from errors import UserError


def pipe(*policy, **options):
    return build_augment({"name": "diffaugment", "policy": list(policy), **options}, 3)


def test_colour():
    n, x = 2000, images(2000, 3, 4, 4)
    y = pipe("color")(x, Draws(n))
    # saturation and contrast leave the mean alone, so it moves by the brightness, which is uniform in +-1/2
    shift = y.mean((1, 2, 3)) - x.mean((1, 2, 3))
    assert shift.abs().max() <= 0.5 and abs(shift.mean()) < 0.03 and abs(shift.std() - 12**-0.5) < 0.01
    gray_in, gray_out = (t.mean(1) - t.mean((1, 2, 3))[:, None, None] for t in (x, y))
    contrast = (gray_in * gray_out).sum((1, 2)) / gray_in.square().sum((1, 2))
    torch.testing.assert_close(gray_out, contrast[:, None, None] * gray_in, rtol=1e-4, atol=1e-5)
    assert 0.5 <= contrast.min() and contrast.max() <= 1.5 and abs(contrast.mean() - 1) < 0.03
    chroma_in, chroma_out = (t - t.mean(1, keepdim=True) for t in (x, y))
    saturation = (chroma_in * chroma_out).sum((1, 2, 3)) / chroma_in.square().sum((1, 2, 3)) / contrast
    assert saturation.min() >= -1e-5 and saturation.max() <= 2 + 1e-5 and abs(saturation.mean() - 1) < 0.06


def test_colour_of_gray_images_keeps_them_gray():
    x = images(8, 1).expand(-1, 3, -1, -1)
    y = pipe("color")(x, Draws(8))
    torch.testing.assert_close(y, y[:, :1].expand_as(y))
    assert build_augment({"name": "diffaugment"}, 1)(x[:, :1], Draws(8)).shape == (8, 1, 8, 8)


@pytest.mark.parametrize("height, width, largest", [(16, 16, (2, 2)), (8, 24, (1, 3)), (12, 4, (2, 1))])
def test_translation_is_by_whole_pixels_with_zeros(height, width, largest):
    n = 400
    x = images(n, 2, height, width) + 2  # no zeros
    y = pipe("translation")(x, Draws(n))
    seen = set()
    for before, after in zip(x, y):
        rows, columns = (after != 0).any(2)[0].nonzero()[:, 0], (after != 0).any(1)[0].nonzero()[:, 0]
        top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        dy = int(top) if top else int(bottom) - height
        dx = int(left) if left else int(right) - width
        expected = torch.zeros_like(before)
        expected[:, top:bottom, left:right] = before[:, top - dy : bottom - dy, left - dx : right - dx]
        assert torch.equal(after, expected)
        seen.add((dy, dx))
    my, mx = largest
    assert seen == {(dy, dx) for dy in range(-my, my + 1) for dx in range(-mx, mx + 1)}


@pytest.mark.parametrize("size, side", [(8, 4), (6, 3)])
def test_cutout_size(size, side):
    n = 1000
    y = pipe("cutout")(torch.ones(n, 3, size, size), Draws(n))
    gone = y == 0
    assert torch.equal(y, (~gone).float()) and (gone == gone[:, :1]).all()
    lengths = [gone[:, 0].any(dim).sum(1) for dim in (1, 2)]
    assert torch.equal(gone[:, 0].sum((1, 2)), lengths[0] * lengths[1])  # a rectangle
    for length in lengths:
        assert length.max() == side and length.min() == side // 2 + side % 2
    centred = gone[:, 0].float().mean(0)
    torch.testing.assert_close(centred, centred.flip(0), rtol=0, atol=0.06)
    assert centred[size // 2, size // 2] > centred[0, 0]


def test_twice_differentiable():
    x = images(2, 3, 4, 3, torch.float64).requires_grad_()
    augment = build_augment({"name": "diffaugment", "translation_ratio": 0.25}, 3)
    assert torch.autograd.gradcheck(lambda x: augment(x, Draws(2)), (x,))
    assert torch.autograd.gradgradcheck(lambda x: augment(x, Draws(2)), (x,))


def test_an_image_does_not_depend_on_its_batch():
    x, augment = images(6), build_augment({"name": "diffaugment"}, 3)
    whole = augment(x, Draws(6))
    for i in range(6):
        torch.testing.assert_close(augment(x[i : i + 1], Draws(6, slice(i, i + 1))), whole[i : i + 1], rtol=0, atol=1e-6)


def test_policy_and_strength():
    x, draws = images(), Draws(4)
    y = pipe("cutout", "color")(x, draws, 0.0)  # order of the policy is the paper's, strength means nothing
    assert draws.asked == ["color", "cutout_y", "cutout_x"] and not pipe("color").uses_strength
    assert torch.equal(y, pipe("color", "cutout")(x, Draws(4), 1.0)) and not torch.equal(y, x)
    assert torch.equal(pipe("translation", translation_ratio=0.0)(x, Draws(4)), x)
    assert pipe("color")(x.bfloat16(), Draws(4)).dtype == torch.bfloat16
    for bad in ([], ["colour"], ["color", "color"]):
        with pytest.raises(UserError, match=r"augment=diffaugment: policy=.*one or more of color, translation, cutout"):
            pipe(*bad)
    with pytest.raises(UserError, match="augment=diffaugment: cutout_ratio=2.0: must be at least 0, at most 1"):
        pipe("cutout", cutout_ratio=2.0)
