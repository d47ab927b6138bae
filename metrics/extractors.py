"""Feature extractors: from images (or points) to what distances compare. Each knows how to describe itself beside a number.

``EXTRACTORS`` has those of this project; every name in torch-fidelity's registry (``clip-rn50``, ``dinov2-vit-b-14``, one that
you registered with ``torch_fidelity.register_feature_extractor``) works too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data import DataSource, Spec, points, stacked_digits, to_float
from data.source import STORED
from errors import UserError, nearest
from metrics.cache import weights_hash
from metrics.classifier import RESIZER, VERSION, WIDTH, classifier_for
from metrics.digits import digits_classifier
from metrics.modes import REACH, by_distance, of_numbers
from metrics.random_state import apart


class Unavailable(UserError):
    """An extractor that cannot be had here: which file or data it lacks, and what to do."""


@dataclass
class Request:
    """What extractors may need to be made.

    source   the labelled or unlabelled training images (for ``classifier`` and ``digits``).
    device   where features are computed.
    cache    folder for networks that are trained once; None keeps nothing.
    weights  extractor name -> weights file that the user named.
    say      takes what a person should read.
    """

    source: DataSource | None
    device: torch.device
    cache: Path | None = None
    weights: dict[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        if self.device.type == "mps":  # antialiased resizing and torch-fidelity know CPU and CUDA
            self.device = torch.device("cpu")


@dataclass
class Extractor:
    """Images -> features.

    compute   uint8 (n, C, H, W) on ``device`` -> (features (n, d), logits (n, classes) or None).
    logits    whether there are class scores.
    labels    whether class c of them is label c of the data.
    protocol  plain values to be written beside every number: layer, weights, resizer, accuracy where it has one.
    modes     number of the data's modes, to which logits (n, modes) assign samples (see metrics.modes); 0: it knows none.
    rejects   whether a sample may belong to no mode: all its logits are -inf.
    kind      of what ``compute`` takes: uint8 "images", or "points", float32 (n, 2, 1, 1).
    """

    name: str
    compute: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    device: torch.device
    logits: bool = False
    labels: bool = False
    protocol: dict[str, Any] = field(default_factory=dict)
    modes: int = 0
    rejects: bool = False
    kind: str = "images"

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images (n, 1 or 3, H, W) uint8, or points -> (features (n, d), logits or None), float32 on the CPU."""
        channels = (2,) if self.kind == "points" else (1, 3)
        if images.dtype != STORED[self.kind] or images.dim() != 4 or images.shape[1] not in channels:
            wanted = f"{str(STORED[self.kind]).removeprefix('torch.')} (n, {' or '.join(map(str, channels))}, H, W)"
            raise ValueError(f"wanted: {wanted}; got {images.dtype} {tuple(images.shape)}")
        features, logits = self.compute(images.to(self.device))
        return features.float().cpu(), None if logits is None else logits.float().cpu()


# torch-fidelity's -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Published:
    """A network whose weights torch-fidelity downloads: the file, the start of its SHA-256, the option that names it."""

    registered: str
    file: str
    sha256: str
    option: str
    layer: str
    logits: str | None
    resizer: str


PUBLISHED = {
    "inception": _Published(
        "inception-v3-compat", "weights-inception-2015-12-05-6726825d.pth", "6726825d", "inception_weights", "2048",
        "logits_unbiased", "bilinear as in TensorFlow 1 (corners not aligned), not antialiased, to 299 px",
    ),
    "vgg16": _Published(
        "vgg16", "vgg16-397923af.pth", "397923af", "vgg_weights", "fc2_relu", None,
        "bilinear as in TensorFlow 1 (corners not aligned), not antialiased, to 224 px",
    ),
}  # fmt: skip


def published_file(name: str, weights: dict[str, str]) -> tuple[Path, bool]:
    """(where the weights of ``name`` are or belong, whether the user named that place)."""
    if weights.get(name):
        return Path(weights[name]).expanduser(), True
    return Path(torch.hub.get_dir()) / "checkpoints" / PUBLISHED[name].file, False


def at_hand(name: str, weights: dict[str, str]) -> bool:
    """Whether a published extractor could be made without a download."""
    path, named = published_file(name, weights)
    return named or path.is_file()


def _published(name: str, request: Request) -> Extractor:
    made = PUBLISHED[name]
    path, named = published_file(name, request.weights)
    if not path.is_file():
        if named:
            raise Unavailable(f"{made.option}={path}: no such file; wanted: {made.file} (SHA-256 {made.sha256}…)")
        _download(name, path)
    shown = f"{made.option}={path}" if named else str(path)
    found = _sha256(path)
    if not found.startswith(made.sha256):
        raise Unavailable(
            f"{shown}: corrupt or another file, its SHA-256 is {found[:8]}… and {made.file} has {made.sha256}…; fetch it anew"
        )
    layers = [made.layer] + ([made.logits] if made.logits else [])
    extractor = _fidelity(name, made.registered, layers, request, str(path))
    extractor.protocol |= {"resizer": made.resizer, "weights_file": made.file, "weights_sha256": found}
    return extractor


def _download(name: str, path: Path) -> None:
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3
    from torchvision.models import VGG16_Weights

    made = PUBLISHED[name]
    url = {"inception": URL_INCEPTION_V3, "vgg16": VGG16_Weights.IMAGENET1K_V1.url}[name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), hash_prefix=made.sha256)
    except (URLError, OSError, RuntimeError) as error:  # RuntimeError: the download's hash is wrong
        reason = " ".join(str(error).split())[:120]
        raise Unavailable(
            f"extractor={name}: {made.file} is not here and cannot be downloaded ({reason}); put it at {path}, or name it "
            f"with {made.option}=FILE"
        ) from error


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _registered(name: str, request: Request) -> Extractor:
    """An extractor of torch-fidelity's registry, at its default layer for FID."""
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

    made = FEATURE_EXTRACTORS_REGISTRY[name]
    layers = list(dict.fromkeys(made.get_default_feature_layer_for_metric(metric) for metric in ("fid", "isc")))
    try:
        return _fidelity(name, name, layers, request, None)
    except (URLError, OSError, RuntimeError) as error:
        raise Unavailable(f"extractor={name}: torch-fidelity cannot make it ({' '.join(str(error).split())[:160]})") from error


def _fidelity(name: str, registered: str, layers: list[str], request: Request, weights: str | None) -> Extractor:
    """``layers``: of the features, then of the logits (which torch-fidelity's classes may place on one layer)."""
    from torch_fidelity.utils import create_feature_extractor

    with apart(request.device):  # layers draw first weights that the file then replaces
        network = create_feature_extractor(
            registered, layers, cuda=request.device.type == "cuda", feature_extractor_weights_path=weights, verbose=False
        )
    network = network.to(request.device)

    def compute(images: Tensor) -> tuple[Tensor, Tensor | None]:
        found = network(images if images.shape[1] == 3 else images.expand(-1, 3, -1, -1))
        features = {layer: feature.flatten(1) for layer, feature in network.convert_features_tuple_to_dict(found).items()}
        return features[layers[0]], features[layers[1]] if len(layers) > 1 else None

    extractor = Extractor(name, compute, request.device)
    extractor.protocol = {
        "layer": layers[0], "weights_hash": weights_hash(network.state_dict()), "resizer": f"torch-fidelity's for {registered}",
    }  # fmt: skip
    if len(layers) > 1:
        extractor.logits = True
        extractor.protocol["logits_layer"] = layers[1]
    return extractor


# of this project ------------------------------------------------------------------------------------------------------


def _classifier(name: str, request: Request) -> Extractor:
    source = request.source
    judge = classifier_for(source.images, source.labels, source.spec.classes, source.content_hash, request.cache, request.say)
    judge.network.to(request.device)
    protocol = {
        "layer": f"{4 * WIDTH} features before the last", "weights_hash": judge.weights_hash, "resizer": RESIZER,
        "version": VERSION, "trained_on": source.content_hash,
        "held_out_accuracy": judge.held_out_accuracy, "held_out_images": judge.held_out,
    }  # fmt: skip
    return Extractor(name, judge, request.device, True, True, protocol)


def _digits(name: str, request: Request) -> Extractor:
    judge = digits_classifier()

    def compute(images: Tensor) -> tuple[Tensor, Tensor]:
        features = judge.features(to_float(images)).cpu()
        return features, judge.network[-1](features)

    at_home = request.source is not None and request.source.spec.name == "digits"
    protocol = {
        "layer": "64 features before the last", "weights_hash": judge.weights_hash,
        "resizer": "luma, bicubic, antialiased, to 16 px", "held_out_accuracy": judge.held_out_accuracy,
        "held_out_images": len(judge.held_out),
    }  # fmt: skip
    if not at_home:
        protocol["warning"] = "smoke test only: a judge of digits looked at other data"
    return Extractor(name, compute, request.device, True, at_home, protocol)


RANDOM_WIDTHS = (24, 48, 96)


def _random(name: str, request: Request) -> Extractor:
    channels = request.source.spec.channels if request.source is not None else 3
    with apart():
        torch.manual_seed(0)
        stages = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 5, stride=2, padding=2, bias=False)
            for inputs, outputs in zip((channels, *RANDOM_WIDTHS), RANDOM_WIDTHS)
        )
        for stage in stages:
            nn.init.kaiming_normal_(stage.weight, nonlinearity="relu")
    stages = stages.to(request.device).eval().requires_grad_(False)

    def compute(images: Tensor) -> tuple[Tensor, None]:
        x, found = to_float(images), []
        for stage in stages:
            x = F.relu(stage(x))
            found += [x.mean(dim=(2, 3)), x.flatten(2).std(dim=2, correction=0)]
        return torch.cat(found, dim=1), None

    protocol = {
        "layer": f"mean and deviation of {len(RANDOM_WIDTHS)} layers with random weights (seed 0)",
        "weights_hash": weights_hash(stages.state_dict()), "resizer": "none",
        "warning": "random weights: comparable within one table only",
    }  # fmt: skip
    return Extractor(name, compute, request.device, protocol=protocol)


def _stacked_digits(name: str, request: Request) -> Extractor:
    judge = digits_classifier()

    def compute(images: Tensor) -> tuple[Tensor, Tensor]:
        n, stacked = images.shape[:2]
        features = judge.features(to_float(images).flatten(0, 1).unsqueeze(1)).cpu()
        return features.view(n, -1), of_numbers(judge.network[-1](features).view(n, stacked, -1))

    protocol = {
        "layer": "64 features before the last of each channel", "weights_hash": judge.weights_hash,
        "resizer": "bicubic, antialiased, to 16 px", "held_out_accuracy": judge.held_out_accuracy,
        "held_out_images": len(judge.held_out), "modes": "the number that the three digits make",
    }  # fmt: skip
    return Extractor(name, compute, request.device, True, protocol=protocol, modes=stacked_digits.MODES)


def _points(name: str, request: Request) -> Extractor:
    extractor = outline(name, request.source.spec, request.device)
    geometry = points.geometry(request.source.spec.name) if extractor.modes else None

    def compute(images: Tensor) -> tuple[Tensor, Tensor | None]:
        found = images.flatten(1)
        return found, None if geometry is None else by_distance(geometry.distances(found))

    extractor.compute, extractor.protocol = compute, {"layer": "coordinates", "resizer": "none"}
    if geometry is not None:
        extractor.protocol |= {"sigma": geometry.sigma, "modes": f"the nearest one, up to {REACH:g} sigma away"}
    return extractor


EXTRACTORS: dict[str, Callable[[str, Request], Extractor]] = {
    "inception": _published,
    "vgg16": _published,
    "classifier": _classifier,
    "digits": _digits,
    "random": _random,
    "stacked_digits": _stacked_digits,
    "points": _points,
}
"""Name (``extractor=<name>``) -> what makes it; add your own here."""


def of_this_project(spec: Spec) -> str:
    """The extractor of this project that knows most about data of ``spec``."""
    if spec.kind == "points":
        return "points"
    return spec.name if spec.name in ("digits", "stacked_digits") else "classifier" if spec.classes else "random"


def outline(name: str, spec: Spec | None, device: torch.device) -> Extractor | None:
    """What :func:`make` would give for data of ``spec``, with no network in it yet; None: that is known only when it is made.

    Unavailable if the extractor is not one for such data.
    """
    spec = spec or Spec("images", 1, 3, 0)
    if spec.kind == "points" and name != "points":
        raise Unavailable(f"extractor={name}: it looks at images and dataset={spec.name} is points; use extractor=points")
    if spec.kind != "points" and name == "points":
        raise Unavailable(f"extractor=points: it looks at points and this data is images; use extractor={of_this_project(spec)}")
    if spec.name != "stacked_digits" and name == "stacked_digits":
        raise Unavailable("extractor=stacked_digits: it knows the modes of dataset=stacked_digits only; use extractor="
                          f"{of_this_project(spec)}")  # fmt: skip
    if name == "classifier" and not spec.classes:
        raise Unavailable("extractor=classifier: it learns from labels and the data has none; use extractor=random")
    if name == "points":
        modes = points.geometry(spec.name).modes if spec.name in points.GEOMETRIES else 0
        return Extractor(name, _nothing, device, modes=modes, rejects=bool(modes), kind="points")
    known = {
        "classifier": Extractor(name, _nothing, device, True, True),
        "digits": Extractor(name, _nothing, device, True, spec.name == "digits"),
        "stacked_digits": Extractor(name, _nothing, device, True, modes=stacked_digits.MODES),
        "random": Extractor(name, _nothing, device),
    }
    return known.get(name)


def _nothing(images: Tensor) -> tuple[Tensor, None]:
    raise NotImplementedError("an outline of an extractor computes nothing")


def make(name: str, request: Request) -> Extractor:
    """The extractor ``name``; Unavailable if it cannot be had, UserError for an unknown name."""
    outline(name, None if request.source is None else request.source.spec, request.device)
    if name in EXTRACTORS:
        return EXTRACTORS[name](name, request)
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

    if name not in FEATURE_EXTRACTORS_REGISTRY:
        raise UserError(f"extractor={name}: unknown, {nearest(name, [*EXTRACTORS, *FEATURE_EXTRACTORS_REGISTRY])}")
    return _registered(name, request)

