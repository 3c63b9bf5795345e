"""What benchmarks train: networks of the published shapes, with the batches asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grace_dl.bench.models import resnet50_shapes
from grace_dl.bench.workload import MODELS, Workload, model_name, workloads
from grace_dl.errors import ConfigError

# Tensors and numbers, as in torchvision 0.28 (residual networks, VGG, DenseNet), timm 1.0 (Inception) and
# transformers 5.22 (BERT with both heads), whose outputs are those of ours for the same weights.
SIZES = {
    "resnet18": (62, 11_689_512),
    "resnet50": (161, 25_557_032),
    "resnet152": (467, 60_192_808),
    "vgg16": (32, 138_357_544),
    "inception-v4": (449, 42_679_816),
    "densenet201": (604, 20_013_928),
    "bert-base": (206, 110_106_428),
    "bert-large": (398, 336_226_108),
}


def on_meta(workload: Workload) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model and its loss, without memory or work."""
    with torch.device("meta"):
        model = workload.build()
    batch = workload.batch(torch.Generator().manual_seed(0))
    return model, model(*(part.to("meta") for part in batch))


@pytest.mark.parametrize("name", SIZES)
def test_networks_have_their_published_size(name: str) -> None:
    model, loss = on_meta(Workload(name, batch_size=2))
    parameters = list(model.parameters())
    assert (len(parameters), sum(p.numel() for p in parameters)) == SIZES[name]
    assert loss.shape == ()
    loss.backward()
    assert all(p.grad is not None for p in parameters)


def test_resnet50_and_its_shapes_agree() -> None:
    model, _ = on_meta(Workload("resnet50", 2))
    assert sorted(tuple(p.shape) for p in model.parameters()) == sorted(resnet50_shapes())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_loss_at_its_own_sizes(name: str) -> None:
    workload = Workload(name, 2 if MODELS[name].batch_size else None)
    assert on_meta(workload)[1].shape == ()


@pytest.mark.parametrize(
    ("workload", "shapes"),
    [
        (Workload("resnet18", 3, 64), [(3, 3, 64, 64), (3,)]),
        (Workload("inception-v4", 2), [(2, 3, 299, 299), (2,)]),
        (Workload("bert_base", 5, length=9), [(5, 9), (5, 9), (5, 9), (5,)]),
    ],
    ids=str,
)
def test_batches_have_the_sizes_asked_for(workload: Workload, shapes: list[tuple[int, ...]]) -> None:
    assert [tuple(part.shape) for part in workload.batch(torch.Generator())] == shapes


@pytest.mark.parametrize("name", ["inception-v4", "bert-large"])
def test_the_smallest_sizes_are_enough(name: str) -> None:
    small = MODELS[name].smallest if MODELS[name].image_size else None
    assert on_meta(Workload(name, 2, small, 2 if small is None else None))[1].shape == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnte50",), "did you mean 'resnet50'"),
        (("small-shapes", 4), "--batch-size 4 means nothing to small-shapes"),
        (("bert-base", 4, 224), "--image-size 224 means nothing to bert-base"),
        (("inception-v4", 4, 32), "at least 75"),
        (("bert-base", 4, None, 1000), "between 2 and 512"),
        (("resnet18", 0), "at least 1"),
    ],
)
def test_wrong_sizes_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Workload(*arguments)


def test_spellings_of_the_seed() -> None:
    assert [model_name(n) for n in ("bert_large", "inceptionv4", "densenet")] == [
        "bert-large",
        "inception-v4",
        "densenet201",
    ]


def test_sizes_go_to_the_models_that_have_them() -> None:
    found = workloads(["cnn", "bert_base", "small-shapes", "cnn"], 4, 64)
    assert found == [Workload("cnn", 4, 64), Workload("bert-base", 4), Workload("small-shapes")]
