"""Model definitions: what the shipped configs train."""

from __future__ import annotations

from .residual import resnet18, resnet20, resnet32, resnet44, resnet50, resnet56, resnet110, resnet152
from .small import mlp, small_cnn
from .text import lstm, transformer
from .vgg import vgg16, vgg16_bn, vgg16_plain

__all__ = [
    "lstm",
    "mlp",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet50",
    "resnet56",
    "resnet110",
    "resnet152",
    "small_cnn",
    "transformer",
    "vgg16",
    "vgg16_bn",
    "vgg16_plain",
]
