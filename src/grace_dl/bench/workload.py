"""Benchmark workloads: a model by name, and batches of synthetic data of a given size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ConfigError
from ..registry import unknown
from ..train import models as trained
from . import nets, own_models
from .models import SMALL_SHAPES, Convolutional, Shapes, Transformer, resnet50_shapes

Batch = tuple[Tensor, ...]


class Classifier(nn.Module):
    """An image network with its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(images), labels)


class Pretraining(nn.Module):
    """BERT with the loss of both its tasks, at every position."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.net = nets.Bert(width, layers, heads)

    def forward(self, tokens: Tensor, sentences: Tensor, words: Tensor, follows: Tensor) -> Tensor:
        scores, follow_scores = self.net(tokens, sentences)
        loss = functional.cross_entropy(scores.flatten(0, 1), words.flatten())
        return loss + functional.cross_entropy(follow_scores, follows)


@dataclass(frozen=True)
class Recipe:
    """How to build a model and its batches. Sizes that do not apply to a model are None."""

    make: Callable[[], nn.Module]
    kind: str
    batch_size: int | None = None
    image_size: int | None = None
    smallest: int = 1
    """The smallest supported image size."""
    length: int | None = None
    longest: int = nets.bert.LONGEST
    shapes: tuple[tuple[int, ...], ...] = ()


def _image_net(make: Callable[[], nn.Module], batch_size: int, size: int = 224, smallest: int = 32) -> Recipe:
    return Recipe(lambda: Classifier(make()), "images", batch_size, size, smallest)


def _shapes(shapes: list[tuple[int, ...]]) -> Recipe:
    return Recipe(partial(Shapes, shapes), "grads", shapes=tuple(shapes))


MODELS: dict[str, Recipe] = {
    "transformer": Recipe(Transformer, "tokens", 2, length=17, longest=65),
    "cnn": Recipe(Convolutional, "images", 8, 32, 32),
    "resnet18": _image_net(trained.resnet18, 64),
    "resnet50": _image_net(trained.resnet50, 64),
    "resnet152": _image_net(trained.resnet152, 32),
    "vgg16": _image_net(trained.vgg16_plain, 32),
    "inception-v4": _image_net(nets.inception_v4, 32, 299, 75),
    "densenet201": _image_net(nets.densenet201, 32),
    "bert-base": Recipe(partial(Pretraining, 768, 12, 12), "sentences", 32, length=64),
    "bert-large": Recipe(partial(Pretraining, 1024, 24, 16), "sentences", 8, length=64),
    "resnet50-shapes": _shapes(resnet50_shapes()),
    "small-shapes": _shapes(SMALL_SHAPES),
}
"""By name. The batch sizes of the networks are for GPUs; use smaller ones on small machines."""

_ALIASES = {"densenet": "densenet201", "inceptionv4": "inception-v4"}


def model_name(name: str) -> str:
    """The name in `MODELS` for common spellings; `module:function` of a user as it is.

    >>> model_name("bert_base"), model_name("inceptionv4"), model_name("densenet")
    ('bert-base', 'inception-v4', 'densenet201')
    """
    if own_models.is_own(name):
        return name
    wanted = name.lower().replace("_", "-")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in MODELS:
        raise unknown("model", name, MODELS)
    return wanted


OWN = "own"
"""The kind of a user's model, which brings its own batch."""


def recipe_of(name: str) -> Recipe:
    """How to build a model of a valid name."""
    return Recipe(lambda: own_models.build(name)[0], OWN) if own_models.is_own(name) else MODELS[name]


@dataclass(frozen=True)
class Workload:
    """A model with sizes; None for the model's defaults. `accumulate`: the passes of a step, whose gradients are added."""

    model: str
    batch_size: int | None = None
    image_size: int | None = None
    length: int | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", model_name(self.model))
        if own_models.is_own(self.model):
            own_models.check(self.model)
        recipe = self.recipe
        for label, value, own, least, most in (
            ("--batch-size", self.batch_size, recipe.batch_size, 1, None),
            ("--image-size", self.image_size, recipe.image_size, recipe.smallest, None),
            ("--length", self.length, recipe.length, 2, recipe.longest),
        ):
            if value is None:
                continue
            if own is None:
                raise ConfigError(f"{label} {value} means nothing to {self.model}; leave it out.")
            if value < least or (most is not None and value > most):
                limit = f"at least {least}" if most is None else f"between {least} and {most}"
                raise ConfigError(f"{label} {value} must be {limit} for {self.model}; its own is {own}.")

    @property
    def recipe(self) -> Recipe:
        return recipe_of(self.model)

    @property
    def given(self) -> bool:
        """Whether a batch consists of precomputed gradients."""
        return self.recipe.kind == "grads"

    @property
    def samples(self) -> int | None:
        """Samples a worker trains on in a step; None if there are none."""
        return self.batch_size or self.recipe.batch_size

    def __str__(self) -> str:
        """The model and its non-default sizes: `resnet18 bs8 64px`."""
        passes = self.accumulate if self.accumulate > 1 else None
        sizes = (
            ("bs{}", self.batch_size),
            ("{}px", self.image_size),
            ("length {}", self.length),
            ("{} passes", passes),
        )
        return " ".join([self.model, *(form.format(size) for form, size in sizes if size is not None)])

    def build(self) -> nn.Module:
        """The model; its forward takes a batch and returns a loss."""
        return self.recipe.make()

    def batch(self, generator: torch.Generator) -> Batch:
        """Synthetic data for one step."""
        recipe, count = self.recipe, self.samples or 0

        def draw(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=generator)

        if recipe.kind == OWN:
            return own_models.batch(self.model, generator)
        if self.given:
            return tuple(torch.randn(shape, generator=generator) for shape in recipe.shapes)
        if recipe.kind == "images":
            side = self.image_size or recipe.image_size or 0
            classes = 10 if self.model == "cnn" else 1000
            return torch.randn(count, 3, side, side, generator=generator), draw(classes, count)
        length = self.length or recipe.length or 0
        if recipe.kind == "tokens":
            return (draw(1024, count, length),)
        words = nets.bert.VOCABULARY
        return draw(words, count, length), draw(2, count, length), draw(words, count, length), draw(2, count)


def workloads(
    models: Sequence[str],
    batch_size: int | None = None,
    image_size: int | None = None,
    length: int | None = None,
    accumulate: int = 1,
) -> list[Workload]:
    """One workload per model; sizes apply to the models that have them.

    >>> [str(w) for w in workloads(["resnet18", "bert-base"], batch_size=4, image_size=64)]
    ['resnet18 bs4 64px', 'bert-base bs4']
    """
    names = [model_name(name) for name in models]
    if len(names) == 1:
        return [Workload(names[0], batch_size, image_size, length, accumulate)]
    return [
        Workload(
            name,
            batch_size if recipe_of(name).batch_size is not None else None,
            image_size if recipe_of(name).image_size is not None else None,
            length if recipe_of(name).length is not None else None,
            accumulate,
        )
        for name in dict.fromkeys(names)
    ]
