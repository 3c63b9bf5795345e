"""VGG with 16 layers (Simonyan 2015), for CIFAR and for ImageNet."""

from __future__ import annotations

from torch import nn

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def _features(in_channels: int, norm: bool = True) -> list[nn.Module]:
    layers: list[nn.Module] = []
    inputs = in_channels
    for width, count in _STAGES:
        for _ in range(count):
            conv = nn.Conv2d(inputs, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            layers += [conv, *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return layers


def vgg16(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """For 32 × 32 images: batch normalisation, one linear layer at the end; 14.7M parameters."""
    return nn.Sequential(
        *_features(in_channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes)
    )


def vgg16_bn(num_classes: int = 1000, dropout: float = 0.5) -> nn.Sequential:
    """For ImageNet, with batch normalisation: three linear layers at the end; 138M parameters."""
    return _imagenet(num_classes, dropout, norm=True)


def vgg16_plain(num_classes: int = 1000, dropout: float = 0.5) -> nn.Sequential:
    """For ImageNet, as published, without batch normalisation; 138M parameters."""
    return _imagenet(num_classes, dropout, norm=False)


def _imagenet(num_classes: int, dropout: float, norm: bool) -> nn.Sequential:
    return nn.Sequential(
        *_features(3, norm),
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        *(nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(4096, num_classes),
    )
