"""From options to the networks that the classic models share: any generator beside any discriminator, any blocks in them."""

from __future__ import annotations

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
    shortcut                  of G: none, identity, gated or egs (arXiv:2201.11351); None: the network's own, none in dcgan and
                              identity in resnet.
    norm_g, norm_d            batch, instance, layer, group or none.
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
    upsample: str = "transposed"
    downsample: str = "strided"
    shortcut: str | None = None
    norm_g: str = "batch"
    norm_d: str = "batch"
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
            ("norm_g", NORMS), ("norm_d", NORMS), ("init", INITS),
        ):  # fmt: skip
            one_of(f"gan.{name}", getattr(self, name), allowed)
        for name in ("z_dim", "width_g", "width_d", "embedding_dim"):
            at_least(f"gan.{name}", getattr(self, name), 1)
        if self.shortcut is not None:
            one_of("gan.shortcut", self.shortcut, SHORTCUTS)
        share("gan.dropout", self.dropout)
        if not 0 < self.survival <= 1:
            raise UserError(f"gan.survival={self.survival}: must be above 0 and at most 1")
        if self.survival < 1 and not self.residual_g and self.discriminator != "resnet":
            raise UserError(f"gan.survival={self.survival}: no residual branch to drop; set gan.shortcut=identity")
        self._check_patch()

    def _check_patch(self) -> None:
        if self.discriminator != "patch":
            for name in ("patch_field", "patch_loss"):
                if getattr(self, name) is not None:
                    raise UserError(f"gan.{name}={getattr(self, name)}: belongs to gan.discriminator=patch, found "
                                    f"gan.discriminator={self.discriminator}")
            return
        if self.patch_field is not None and self.patch_field not in FIELDS:
            raise UserError(f"gan.patch_field={self.patch_field}: unknown; allowed: {', '.join(map(str, FIELDS))}")
        if self.patch_loss is not None:
            one_of("gan.patch_loss", self.patch_loss, PATCH_LOSSES)
        if self.minibatch_stddev:
            raise UserError("gan.minibatch_stddev=true: a discriminator of patches has no last map to put it on; use "
                            "gan.discriminator=dcgan or resnet")

    @property
    def residual_g(self) -> bool:
        """Whether G has identity shortcuts."""
        return self.shortcut == "identity" or (self.shortcut is None and self.generator == "resnet")


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
    labels = dict(classes=classes, embedding_dim=options.embedding_dim)
    generator = _generator(options, spec, labels)
    discriminator = _discriminator(options, spec, dict(conditioning=conditioning, class_head=class_head, **labels))
    for network, normed in ((generator, options.spectral_norm_g), (discriminator, options.spectral_norm_d)):
        if options.init != "paper":
            initialise(network, options.init)
        if normed:
            spectral_norm(network)
    return generator, discriminator


def _generator(options: NetworkOptions, spec: Any, labels: dict[str, Any]) -> nn.Module:
    switches = dict(upsample=options.upsample, norm=options.norm_g, attention=tuple(options.attention_g))
    if options.shortcut is not None:
        switches["shortcut"] = options.shortcut
    if options.residual_g:
        switches["survival"] = options.survival
    sizes = (options.z_dim, options.width_g, spec.resolution, spec.channels)
    return _made(f"gan.generator={options.generator}", GENERATORS[options.generator], *sizes, **labels, **switches)


def _discriminator(options: NetworkOptions, spec: Any, labels: dict[str, Any]) -> nn.Module:
    kind = options.discriminator
    switches: dict[str, Any] = dict(downsample=options.downsample, norm=options.norm_d, dropout=options.dropout)
    switches["attention"] = tuple(options.attention_d)
    if kind == "patch":
        switches["field"] = options.patch_field or 70
    else:
        switches["minibatch_stddev"] = options.minibatch_stddev
    if kind == "resnet":
        switches["survival"] = options.survival
    sizes = (options.width_d, spec.resolution, spec.channels)
    return _made(f"gan.discriminator={kind}", DISCRIMINATORS[kind], *sizes, **labels, **switches)


def _made(part: str, make: Any, *args: Any, **options: Any) -> nn.Module:
    """``make(…)``; what it refuses becomes a UserError that names the part."""
    try:
        return make(*args, **options)
    except ValueError as error:
        raise UserError(f"{part}: {error}") from error


def label_count(name: str, spec: Any, wanted: bool = True) -> int:
    """Classes of ``spec`` if labels are ``wanted`` (0 otherwise); UserError where it has none."""
    if wanted and not spec.classes:
        raise UserError(f"gan={name}: needs labels, and dataset {spec.name} has none; give labelled data, or use an "
                        "unconditional model such as gan=dcgan gan.conditioning=none")
    return spec.classes if wanted else 0
