"""Small networks, for studies and for synthetic data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def mlp(
    shape: Sequence[int] = (3, 32, 32), num_classes: int = 10, width: int = 256, depth: int = 2
) -> nn.Sequential:
    """Fully connected layers on samples of any shape."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = shape if isinstance(shape, int) else math.prod(shape)
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, num_classes))


def small_cnn(
    num_classes: int = 10, in_channels: int = 3, width: int = 32, dropout: float = 0.0
) -> nn.Sequential:
    """Three convolutions that halve the image size and two linear layers; 0.36M parameters at width 32."""
    layers: list[nn.Module] = []
    inputs = in_channels
    for outputs in (width, 2 * width, 4 * width):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        inputs = outputs
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * inputs, 4 * width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(4 * width, num_classes),
    )
