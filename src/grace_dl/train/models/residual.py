"""Residual networks (He 2016): those for CIFAR, with 6n+2 layers, and those for ImageNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class _Padded(nn.Module):
    """The shortcut without parameters: every second pixel, missing channels zero (section 4.2, option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(x, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))


class _Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool, projection: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        if bottleneck:
            layers = [
                _conv(inputs, width, 1),
                nn.ReLU(),
                _conv(width, width, 3, stride),
                nn.ReLU(),
                _conv(width, outputs, 1),
            ]
        else:
            layers = [_conv(inputs, width, 3, stride), nn.ReLU(), _conv(width, width, 3)]
        self.body = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = (
                _conv(inputs, outputs, 1, stride) if projection else _Padded(inputs, outputs, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the image size and double the width, and one linear layer."""

    def __init__(
        self,
        stem: nn.Module,
        width: int,
        blocks: list[int],
        num_classes: int,
        bottleneck: bool,
        projection: bool,
    ) -> None:
        super().__init__()
        self.stem = stem
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            for place in range(count):
                stride = 2 if stage and not place else 1
                layers.append(_Block(inputs, width << stage, stride, bottleneck, projection))
                inputs = (width << stage) * (4 if bottleneck else 1)
        self.stages = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def _cifar(layers: int, num_classes: int, in_channels: int) -> ResNet:
    stem = nn.Sequential(_conv(in_channels, 16, 3), nn.ReLU())
    return ResNet(stem, 16, [(layers - 2) // 6] * 3, num_classes, bottleneck=False, projection=False)


def _imagenet(blocks: list[int], num_classes: int, bottleneck: bool) -> ResNet:
    stem = nn.Sequential(_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return ResNet(stem, 64, blocks, num_classes, bottleneck, projection=True)


def resnet20(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """20 layers for small images; 0.27M parameters."""
    return _cifar(20, num_classes, in_channels)


def resnet32(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """32 layers for small images; 0.46M parameters."""
    return _cifar(32, num_classes, in_channels)


def resnet44(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """44 layers for small images; 0.66M parameters."""
    return _cifar(44, num_classes, in_channels)


def resnet56(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """56 layers for small images; 0.85M parameters."""
    return _cifar(56, num_classes, in_channels)


def resnet110(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """110 layers for small images; 1.7M parameters."""
    return _cifar(110, num_classes, in_channels)


def resnet18(num_classes: int = 1000) -> ResNet:
    """18 layers for ImageNet; 11.7M parameters."""
    return _imagenet([2, 2, 2, 2], num_classes, bottleneck=False)


def resnet50(num_classes: int = 1000) -> ResNet:
    """50 layers for ImageNet; 25.6M parameters."""
    return _imagenet([3, 4, 6, 3], num_classes, bottleneck=True)


def resnet152(num_classes: int = 1000) -> ResNet:
    """152 layers for ImageNet; 60.2M parameters."""
    return _imagenet([3, 8, 36, 3], num_classes, bottleneck=True)
