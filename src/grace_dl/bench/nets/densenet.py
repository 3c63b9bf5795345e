"""Densely connected networks for ImageNet (Huang 2017): every layer sees the output of all before it in its block."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Layer(nn.Module):
    """A bottleneck of `4 * growth` channels, then `growth` new ones beside what came in."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU()),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def _densenet(blocks: tuple[int, ...], growth: int, num_classes: int) -> nn.Sequential:
    width = 2 * growth
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
        *(nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
    ]
    for place, count in enumerate(blocks):
        if place:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            width //= 2
        for _ in range(count):
            layers.append(_Layer(width, growth))
            width += growth
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width, num_classes))


def densenet201(num_classes: int = 1000) -> nn.Sequential:
    """201 layers; 20.0M parameters."""
    return _densenet((6, 12, 48, 32), 32, num_classes)
