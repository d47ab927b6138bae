"""Samples for numbers, and what the driver measures during training; the best checkpoint is kept by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data import DataSource, to_stored
from errors import UserError, nearest
from gans.base import GAN
from metrics.distances import TooFew
from metrics.extractors import Extractor, Request, Unavailable, make, of_this_project, outline
from metrics.random_state import apart
from metrics.score import METRICS, FeatureSet, Group, features_of, named, obstacle, reference_of
from training.config import Config
from training.draws import generator, latents, reseed_layers
from training.processes import Processes
from training.sampling import generate, sample_labels

EVAL_SEED = 7919  # samples for numbers during training, apart from those of the grids
REFERENCE_IMAGES = 10_000  # at most, during training


def data_labels(source: DataSource, seed: int, n: int) -> Tensor:
    """Labels (n,) of samples as the data has them: those of its images in an order drawn with ``seed``, again from the start
    when they run out; n = the number of images gives exactly the data's counts."""
    order = torch.randperm(len(source), generator=generator(seed, "labels"))
    return source.labels.cpu()[order[torch.arange(n) % len(order)]]


class Samples:
    """(first, last) -> those samples of ``gan`` as data sets of this ``kind`` store theirs (uint8 images, or float points), on
    the CPU. Sample i is a function of (seed, i, labels[i]); networks run in evaluation mode and keep their flags.

    broken  (1,) samples so far that had a pixel which is not finite (mid gray in the image).
    """

    def __init__(self, gan: GAN, labels: Tensor | None, seed: int, device: torch.device, kind: str = "images"):
        self.gan, self.labels, self.seed, self.device, self.kind = gan, labels, seed, device, kind
        self.broken = torch.zeros(1, device=device)

    def __call__(self, first: int, last: int) -> Tensor:
        z = latents(self.seed, first, last - first, self.gan.z_dim)
        labels = None if self.labels is None else self.labels[first:last]
        reseed_layers(self.seed, "evaluation", first)  # noise inside layers, where a model has it
        images = torch.cat(list(generate(self.gan, z, labels, self.device, last - first)))
        finite = images.isfinite()
        self.broken += len(images) - int(finite.flatten(1).all(dim=1).sum())
        return to_stored(torch.where(finite, images, 0.0), self.kind)


def group_of(processes: Processes) -> Group:
    """How features travel between ``processes``."""
    return Group(processes.share, lambda part, n: processes.gather(part.to(processes.device), n).cpu())


def key_of(metric: str, extractor: str) -> str:
    """The short name of a number, in logs: ``recognised``, ``modes``, ``fid`` (Inception only), ``frechet_classifier``, …"""
    if metric in ("recognised", "modes") or extractor == "inception":
        return metric
    return f"{'frechet' if metric == 'fid' else metric}_{extractor}"


class Evaluator:
    """A number that says how good samples are, cheap enough to be made during training.

    name              under ``eval/`` in the log.
    higher_is_better  which way is up.
    """

    def __init__(self, metric: str, extractor: str, source: DataSource, config: Config, processes: Processes, say: Callable):
        self.metric, self.extractor_name = metric, extractor
        self.source, self.config, self.processes, self.say = source, config, processes, say
        self.higher_is_better = METRICS[metric].higher
        self.name = key_of(metric, extractor)
        self._folder = Path(config.eval.cache).expanduser()
        self._made_extractor: Extractor | None = None
        self._made_reference: FeatureSet | None = None

    def __call__(self, gan: GAN) -> dict[str, float]:
        """Measure samples of ``gan``; called in every process, the first one gets the numbers (NaN for broken samples), that by
        which the best checkpoint is chosen first."""
        try:
            with apart(self.processes.device):
                return self._measured(gan, self.config.eval.samples, self.config.seed + EVAL_SEED)
        except TooFew as error:
            self.say(f"no evaluation: {error}")
            return {self.name: math.nan}

    def _measured(self, gan: GAN, n: int, seed: int) -> dict[str, float]:
        extractor = self._extractor()
        reference = None if self.metric in ("recognised", "modes") else self._reference()
        labels = self._labels(gan, seed, n)
        samples = Samples(gan, labels, seed, self.processes.device, self.source.spec.kind)
        seen = features_of([extractor], n, samples, labels, group=group_of(self.processes))[extractor.name]
        self.processes.sum_([samples.broken])
        if not self.processes.first:
            return {}
        if samples.broken:
            return {self.name: math.nan}
        values = METRICS[self.metric].compute(seen, reference, self.source.spec.classes)
        also = {name: values[name] for name in METRICS[self.metric].also if name in values}
        return {self.name: next(iter(values.values())), **also}

    def check(self, gan: GAN) -> None:
        """UserError if the metric cannot be had of this model on this data with this extractor."""
        spec = self.source.spec
        try:  # made at the first evaluation: training one takes minutes
            extractor = outline(self.extractor_name, spec, self.processes.device) or self._extractor()
        except Unavailable as error:
            raise UserError(str(error).replace("extractor=", "eval.extractor=")) from error
        reason = obstacle(self.metric, extractor, bool(spec.classes) and gan.conditional)
        if reason:
            raise UserError(reason.replace("metrics=", "eval.metric=").replace("extractor=", "eval.extractor="))

    def describe(self) -> str:
        """The measure in words, for people."""
        return f"{named(self.metric, self.extractor_name)}, {'higher' if self.higher_is_better else 'lower'} is better"

    def _labels(self, gan: GAN, seed: int, n: int) -> Tensor | None:
        if not gan.conditional:
            return None
        if self.metric == "recognised":
            return sample_labels(self.source.spec.classes, 0, n)
        return data_labels(self.source, seed, n)

    def _extractor(self) -> Extractor:
        if self._made_extractor is None:
            request = Request(self.source, self.processes.device, self._folder)
            self._made_extractor = extractor_in_group(self.extractor_name, request, self.processes, self.say)
        return self._made_extractor

    def _reference(self) -> FeatureSet | None:
        """What the extractor sees of the training images, computed at the first evaluation."""
        if self._made_reference is None:
            self._made_reference = reference_of(
                self._extractor(), self.source, REFERENCE_IMAGES, self._folder, group=group_of(self.processes),
                agree=self.processes.broadcast, say=self.say, write=self.processes.first,
            )  # fmt: skip
        return self._made_reference


@dataclass
class Best:
    """The best value so far of one measure, and after how many images."""

    name: str | None
    higher: bool = True
    value: float | None = None
    images_seen: int = 0

    @classmethod
    def of(cls, evaluate: Evaluator | None) -> Best:
        """Of an evaluator's number, with none yet."""
        return cls(None) if evaluate is None else cls(evaluate.name, evaluate.higher_is_better)

    def update(self, value: float, images_seen: int) -> bool:
        """Take ``value`` over if it is finite and not worse (of equals the later, which was trained longer); whether it was."""
        better = math.isfinite(value) and (
            self.value is None or (value >= self.value if self.higher else value <= self.value)
        )  # fmt: skip
        if better:
            self.value, self.images_seen = value, images_seen
        return better

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"name": self.name, "value": self.value, "images_seen": self.images_seen}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from :meth:`state`; what another measure found best is forgotten."""
        if isinstance(state, Mapping) and state["name"] == self.name:
            self.value, self.images_seen = state["value"], state["images_seen"]

    def __str__(self) -> str:
        """``best 0.9870 at 12 kimg``, or that there is none."""
        return "none yet" if self.value is None else f"best {self.value:.4f} at {self.images_seen / 1000:g} kimg"


def extractor_in_group(name: str, request: Request, processes: Processes, say: Callable[[str], None]) -> Extractor:
    """The extractor ``name`` in every process: the first one trains or downloads what it takes, the others find it done."""
    made: Any = None
    problem: UserError | None = None
    if processes.first:
        try:
            request.say = say
            made = make(name, request)
        except UserError as error:
            problem = error
    if processes.count > 1:
        problem = processes.broadcast(problem)
        if problem is None and not processes.first:
            request.say = lambda text: None
            made = make(name, request)
        processes.wait()
    if problem is not None:
        raise problem
    return made


def evaluator(
    gan: GAN, source: DataSource, config: Config, processes: Processes, say: Callable[[str], None] = print
) -> Evaluator | None:
    """The measure that ``eval.metric`` and ``eval.extractor`` ask for; None if there are to be no evaluations.

    ``auto``: the modes covered where the data's modes are known, the share of digits recognised where class-conditional samples
    are to be digits, else the Frechet distance of features of the digits classifier, of a classifier trained on the labels, or,
    without labels, of a random network.
    UserError, before the first step, for what cannot be measured.
    """
    metric, extractor, spec = config.eval.metric, config.eval.extractor, source.spec
    if not config.eval.samples or metric == "none":
        return None
    if metric not in ("auto", *METRICS):
        raise UserError(f"eval.metric={metric}: unknown, {nearest(metric, ['auto', 'none', *METRICS])}")
    if not hasattr(gan, "z_dim"):
        if metric == "auto":
            say("no evaluation: this model does not sample from latents, and its results have no measure here yet")
            return None
        raise UserError(f"eval.metric={metric}: this model does not sample from latents; use eval.metric=none")
    if extractor == "auto":
        extractor = of_this_project(spec)
    if metric == "auto":
        known = outline(extractor, spec, processes.device) if extractor == of_this_project(spec) else None
        if known is not None and known.modes:
            metric = "modes"
        else:
            metric = "recognised" if spec.name == "digits" and gan.conditional and extractor == "digits" else "fid"
    measure = Evaluator(metric, extractor, source, config, processes, say)
    measure.check(gan)
    return measure
