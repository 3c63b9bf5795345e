"""Inception-v4 (Szegedy 2017, figures 3 to 9): modules whose branches look at different scales."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Kernel = int | tuple[int, int]


class _Branches(nn.Module):
    """Applies every branch to the same input and concatenates the outputs."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _conv(inputs: int, outputs: int, kernel: Kernel = 1, stride: int = 1, pad: bool = True) -> nn.Sequential:
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sides[0] // 2, sides[1] // 2) if pad and stride == 1 else (0, 0)
    conv = nn.Conv2d(inputs, outputs, sides, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, eps=0.001), nn.ReLU())


def _chain(inputs: int, *steps: tuple[int, Kernel], reduce: bool = False, pad: bool = True) -> nn.Sequential:
    """Convolutions given by width and kernel; the last one halves the image size (`reduce`) or has no padding."""
    layers = []
    for place, (outputs, kernel) in enumerate(steps):
        last = place == len(steps) - 1
        layers.append(_conv(inputs, outputs, kernel, 2 if last and reduce else 1, pad or not last))
        inputs = outputs
    return nn.Sequential(*layers)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), _conv(inputs, outputs))


def _stem() -> list[nn.Module]:
    return [
        *(_conv(3, 32, 3, 2), _conv(32, 32, 3, pad=False), _conv(32, 64, 3)),
        _Branches(nn.MaxPool2d(3, 2), _conv(64, 96, 3, 2)),
        _Branches(
            _chain(160, (64, 1), (96, 3), pad=False),
            _chain(160, (64, 1), (64, (1, 7)), (64, (7, 1)), (96, 3), pad=False),
        ),
        _Branches(_conv(192, 192, 3, 2), nn.MaxPool2d(3, 2)),
    ]


def _module_a() -> nn.Module:
    return _Branches(
        _conv(384, 96),
        _chain(384, (64, 1), (96, 3)),
        _chain(384, (64, 1), (96, 3), (96, 3)),
        _pooled(384, 96),
    )


def _reduction_a() -> nn.Module:
    return _Branches(
        _conv(384, 384, 3, 2), _chain(384, (192, 1), (224, 3), (256, 3), reduce=True), nn.MaxPool2d(3, 2)
    )


def _module_b() -> nn.Module:
    return _Branches(
        _conv(1024, 384),
        _chain(1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
        _chain(1024, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
        _pooled(1024, 128),
    )


def _reduction_b() -> nn.Module:
    return _Branches(
        _chain(1024, (192, 1), (192, 3), reduce=True),
        _chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3), reduce=True),
        nn.MaxPool2d(3, 2),
    )


def _module_c() -> nn.Module:
    def fork(inputs: int) -> nn.Module:
        return _Branches(_conv(inputs, 256, (1, 3)), _conv(inputs, 256, (3, 1)))

    return _Branches(
        _conv(1536, 256),
        nn.Sequential(_conv(1536, 384), fork(384)),
        nn.Sequential(_chain(1536, (384, 1), (448, (3, 1)), (512, (1, 3))), fork(512)),
        _pooled(1536, 256),
    )


def inception_v4(num_classes: int = 1000) -> nn.Sequential:
    """For 299 × 299 images (at least 75 × 75); 42.7M parameters."""
    return nn.Sequential(
        *_stem(),
        *(_module_a() for _ in range(4)),
        _reduction_a(),
        *(_module_b() for _ in range(7)),
        _reduction_b(),
        *(_module_c() for _ in range(3)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(1536, num_classes),
    )
