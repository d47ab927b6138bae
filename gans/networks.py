"""From options to the networks that the classic models share: any generator beside any discriminator, any blocks in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from errors import UserError
from gans.adversarial import PATCH_LOSSES, AdversarialOptions
from gans.options import at_least, one_of, share
from nets.dcgan import DCGANDiscriminator, DCGANGenerator, stages
from nets.initialise import INITS, initialise
from nets.layers import NORMS, spectral_norm
from nets.patch import FIELDS, PatchDiscriminator
from nets.resize import DOWNSAMPLES, UPSAMPLES
from nets.resnet import ResNetDiscriminator, ResNetGenerator
from nets.shortcut import SHORTCUTS

GENERATORS = {"dcgan": DCGANGenerator, "resnet": ResNetGenerator}
DISCRIMINATORS = {"dcgan": DCGANDiscriminator, "resnet": ResNetDiscriminator, "patch": PatchDiscriminator}


@dataclass
class NetworkOptions(AdversarialOptions):
    """Networks of convolutions and what may be switched in them; ``_g`` and ``_d``: the generator's and the discriminator's.

    generator, discriminator  dcgan or resnet (arXiv:1704.00028); dcgan, resnet or patch (arXiv:1611.07004).
    z_dim, width_g, width_d   size of the latent; channels at half the image's resolution (resnet: everywhere).
    embedding_dim             size of a class's vector where labels are an input.
    upsample, downsample      transposed, resize, pixel_shuffle or fir; strided, avg_pool or fir.
    shortcut                  of G: none, identity, gated or egs (arXiv:2201.11351).
    norm_g, norm_d            batch, instance, layer, group or none.
                              Of these five, None is the network's own: transposed, strided, none, batch and batch in dcgan (and
                              patch), resize, avg_pool, identity, batch and none in resnet.
    spectral_norm_g/d         every weight divided by its largest singular value (arXiv:1802.05957).
    attention_g/d             sizes in pixels of the maps that self-attention follows (arXiv:1805.08318).
    minibatch_stddev          one more channel before D's end: the spread of its batch (arXiv:1710.10196).
    survival                  stochastic depth: residual branches survive with a probability from 1 at the first to this at the
                              last one (arXiv:1603.09382); needs identity shortcuts in G or a resnet discriminator.
    dropout                   of D's hidden features.
    init                      paper (the network's own), normal, kaiming or orthogonal.
    patch_field, patch_loss   discriminator=patch: pixels that a logit sees, 1, 16, 34, 70, 142 or 286 (None: 70); logits are
                              averaged before the loss, or each judged (averaged | each; None: averaged).
    """

    generator: str = "dcgan"
    discriminator: str = "dcgan"
    z_dim: int = 100
    width_g: int = 64
    width_d: int = 64
    embedding_dim: int = 64
    upsample: str | None = None
    downsample: str | None = None
    shortcut: str | None = None
    norm_g: str | None = None
    norm_d: str | None = None
    spectral_norm_g: bool = False
    spectral_norm_d: bool = False
    attention_g: list[int] = field(default_factory=list)
    attention_d: list[int] = field(default_factory=list)
    minibatch_stddev: bool = False
    survival: float = 1.0
    dropout: float = 0.0
    init: str = "paper"
    patch_field: int | None = None
    patch_loss: str | None = None

    def check(self) -> None:
        super().check()
        for name, allowed in (
            ("generator", GENERATORS), ("discriminator", DISCRIMINATORS), ("upsample", UPSAMPLES), ("downsample", DOWNSAMPLES),
            ("shortcut", SHORTCUTS), ("norm_g", NORMS), ("norm_d", NORMS), ("init", INITS),
        ):  # fmt: skip
            if getattr(self, name) is not None:
                one_of(f"gan.{name}", getattr(self, name), allowed)
        for name in ("z_dim", "width_g", "width_d", "embedding_dim"):
            at_least(f"gan.{name}", getattr(self, name), 1)
        share("gan.dropout", self.dropout)
        if not 0 < self.survival <= 1:
            raise UserError(f"gan.survival={self.survival}: must be above 0 and at most 1")
        if self.survival < 1 and not self.residual_g and self.discriminator != "resnet":
            raise UserError(f"gan.survival={self.survival}: no residual branch to drop; set gan.shortcut=identity")
        check_patch(self, DISCRIMINATORS, ("patch_field", "patch_loss"))
        if self.discriminator == "patch" and self.minibatch_stddev:
            raise UserError("gan.minibatch_stddev=true: a discriminator of patches has no last map to put it on; use "
                            "gan.discriminator=dcgan or resnet")
        if self.patch_field == 1 and self.downsample is not None:
            raise UserError(f"gan.downsample={self.downsample}: acts on nothing: patches of one pixel are never made smaller")

    @property
    def residual_g(self) -> bool:
        """Whether G has identity shortcuts."""
        return self.shortcut == "identity" or (self.shortcut is None and self.generator == "resnet")


def check_patch(options: Any, discriminators: Iterable[str], own: Iterable[str]) -> None:
    """UserError for an unknown ``discriminator``, and for options of patches (``own``) that are unknown or without them."""
    one_of("gan.discriminator", options.discriminator, discriminators)
    given = [name for name in own if getattr(options, name) is not None]
    if options.discriminator != "patch":
        for name in given:
            raise UserError(f"gan.{name}={getattr(options, name)}: belongs to gan.discriminator=patch, found "
                            f"gan.discriminator={options.discriminator}")
        return
    if options.patch_field is not None and options.patch_field not in FIELDS:
        raise UserError(f"gan.patch_field={options.patch_field}: unknown; allowed: {', '.join(map(str, FIELDS))}")
    if options.patch_loss is not None:
        one_of("gan.patch_loss", options.patch_loss, PATCH_LOSSES)
    if "patch_width" in given:
        at_least("gan.patch_width", options.patch_width, 1)


def patch_discriminator(field: int, width: int, spec: Any, **switches: Any) -> nn.Module:
    """PatchGAN's discriminator for images of ``spec``; UserError if they are too small for ``field``."""
    part = f"gan.discriminator=patch gan.patch_field={field}"
    return _made(part, PatchDiscriminator, width, spec.resolution, spec.channels, field=field, **switches)


def images_only(name: str, spec: Any) -> None:
    """UserError for a convolutional model on data that are no images."""
    if spec.kind != "images":
        raise UserError(f"gan={name}: convolutional, and dataset {spec.name} has points, not images; use gan=vanilla")


def check_resolution(name: str, spec: Any) -> None:
    """UserError for a resolution that halving does not bring down to a map of 4 to 7 pixels."""
    images_only(name, spec)
    try:
        stages(spec.resolution)
    except ValueError:
        near = [r for r in range(8, 1025) if _reachable(r)]
        near = sorted(sorted(near, key=lambda r: abs(r - spec.resolution))[:3])
        raise UserError(
            f"gan={name}: resolution {spec.resolution} of dataset {spec.name} cannot be halved down to a map of 4 to 7 pixels; "
            f"set dataset.resolution={', '.join(map(str, near[:-1]))} or {near[-1]}"
        ) from None


def _reachable(resolution: int) -> bool:
    try:
        return bool(stages(resolution))
    except ValueError:
        return False


def networks(
    options: NetworkOptions, spec: Any, classes: int = 0, conditioning: str = "none", class_head: bool = False
) -> tuple[nn.Module, nn.Module]:
    """(generator, discriminator) for images of ``spec``, initialised; UserError for options that do not fit.

    classes       G takes labels of that many classes; 0: none.
    conditioning  how D takes them: none, concat or projection.
    class_head    D also tells classes.
    """
    options.check()
    check_resolution(options.name, spec)
    _check_depth(options, spec.resolution)
    labels = dict(classes=classes, embedding_dim=options.embedding_dim)
    generator = _generator(options, spec, labels)
    discriminator = _discriminator(options, spec, dict(conditioning=conditioning, class_head=class_head, **labels))
    for network, normed in ((generator, options.spectral_norm_g), (discriminator, options.spectral_norm_d)):
        if options.init != "paper":
            initialise(network, options.init)
        if normed:
            spectral_norm(network)
    return generator, discriminator


def _check_depth(options: NetworkOptions, resolution: int) -> None:
    """UserError for a shortcut around DCGAN's inner stages where there is none (8 to 14 px)."""
    if stages(resolution)[1] == 1 and options.generator == "dcgan" and options.shortcut not in (None, "none"):
        raise UserError(f"gan.shortcut={options.shortcut}: acts on nothing at resolution {resolution}, where dcgan has no inner "
                        "stage; set dataset.resolution=16 or more")


def _generator(options: NetworkOptions, spec: Any, labels: dict[str, Any]) -> nn.Module:
    switches = _given(upsample=options.upsample, norm=options.norm_g, shortcut=options.shortcut)
    switches["attention"] = tuple(options.attention_g)
    if options.residual_g:
        switches["survival"] = options.survival
    sizes = (options.z_dim, options.width_g, spec.resolution, spec.channels)
    return _made(f"gan.generator={options.generator}", GENERATORS[options.generator], *sizes, **labels, **switches)


def _discriminator(options: NetworkOptions, spec: Any, labels: dict[str, Any]) -> nn.Module:
    switches = _given(downsample=options.downsample, norm=options.norm_d)
    switches |= dict(attention=tuple(options.attention_d), dropout=options.dropout, **labels)
    if options.discriminator == "patch":
        return patch_discriminator(options.patch_field or 70, options.width_d, spec, **switches)
    if options.discriminator == "resnet":
        switches["survival"] = options.survival
    switches["minibatch_stddev"] = options.minibatch_stddev
    part, make = f"gan.discriminator={options.discriminator}", DISCRIMINATORS[options.discriminator]
    return _made(part, make, options.width_d, spec.resolution, spec.channels, **switches)


def _given(**switches: str | None) -> dict[str, Any]:
    """Those that were chosen; the network's own hold for the others."""
    return {name: value for name, value in switches.items() if value is not None}


def _made(part: str, make: Any, *args: Any, **options: Any) -> nn.Module:
    """``make(…)``; what it refuses becomes a UserError that names the part."""
    try:
        return make(*args, **options)
    except ValueError as error:
        raise UserError(f"{part}: {error}") from error


def label_count(name: str, spec: Any, conditioning: str | None = None) -> int:
    """Classes of ``spec``, or 0 for ``conditioning="none"``; UserError where labels are needed and there are none.

    conditioning  the model's option; None: it has none and needs labels always.
    """
    if conditioning == "none":
        return 0
    if not spec.classes:
        way = "use an unconditional model" if conditioning is None or name == "cgan" else "set gan.conditioning=none"
        raise UserError(f"gan={name}: needs labels, and dataset {spec.name} has none; give labelled data, or {way}")
    return spec.classes
