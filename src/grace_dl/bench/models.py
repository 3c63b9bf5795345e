"""Small models that benchmarks train, and shapes without any computation; `workload` adds the well-known networks."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Transformer(nn.Module):
    """A language model of about 20 million parameters (6 layers, width 512) with its loss."""

    def __init__(self, vocabulary: int = 1024, width: int = 512, layers: int = 6, length: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.randn(length, width) / width**0.5)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        y = self.body(self.embed(tokens[:, :-1]) + self.place[: tokens.shape[1] - 1])
        return functional.cross_entropy(self.head(y).flatten(0, 1), tokens[:, 1:].flatten())


class Convolutional(nn.Module):
    """A convolutional classifier of 32 × 32 images, 4.7 million parameters, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 128, 256, 512)
        blocks: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            blocks += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            blocks += [nn.MaxPool2d(2)]
        blocks += [
            nn.Conv2d(512, 512, 3, padding=1, bias=False),
            nn.BatchNorm2d(512),
            nn.ReLU(),
            nn.Flatten(),
        ]
        self.body = nn.Sequential(*blocks, nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.body(images), labels)


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The 161 parameter shapes of ResNet-50 (He et al. 2016, table 1), 25.6 million numbers in all."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            for shape in ((inner, width, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(4 * inner, width, 1, 1), (4 * inner,), (4 * inner,)]
            width = 4 * inner
    return [*shapes, (1000, 2048), (1000,)]


def gpt2_shapes(width: int = 768, layers: int = 12) -> list[tuple[int, ...]]:
    """The 148 parameter shapes of GPT-2 small (Radford et al. 2019), 124.4 million numbers in all."""
    block = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width), *(block * layers), (width,), (width,)]


class _Given(torch.autograd.Function):
    """Passes each parameter a precomputed gradient: a backward pass without work."""

    @staticmethod
    def forward(ctx: Any, grads: list[Tensor], *parameters: Tensor) -> Tensor:  # type: ignore[override]
        ctx.grads = grads
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:  # type: ignore[override]
        # As views, which autograd keeps as gradients; other tensors would be copied.
        return (None, *(grad.view_as(grad) for grad in ctx.grads))


class Shapes(nn.Module):
    """Parameters of given shapes without computation: a step is only the exchange."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, *grads: Tensor) -> Tensor:
        return _Given.apply(list(grads), *self.weights)  # type: ignore[no-any-return]


SMALL_SHAPES: list[tuple[int, ...]] = [(256, 64), (256,), (256, 256), (256,), (10, 256), (10,)] * 4
"""For quick tests."""
