"""Image data sets as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MissingExtraError
from ..registry import unknown
from .fetch import DataError, Report, fetch
from .sources import CIFAR, DATASETS

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 10
NAMES = ("mnist", "fashion-mnist", "cifar10", "digits")


@dataclass(frozen=True)
class Images:
    """A set of small labelled images: uint8 [count, channels, height, width], labels int64 [count]."""

    name: str
    title: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int = CLASSES


def load_images(name: str, fallback: tuple[str, ...] = (), report: Report = lambda line: None) -> Images:
    """A data set by name: mnist, fashion-mnist, cifar10, or digits (1,797 images inside scikit-learn).

    `fallback` names the sets to try when no source of the first can be reached.
    """
    if name not in NAMES:
        raise unknown("image data set", name, NAMES)
    try:
        if name == "digits":
            return _digits()
        folder = fetch(DATASETS[name], report)
        return _cifar(folder) if name == "cifar10" else _idx_set(name, folder)
    except DataError as error:
        if not fallback:
            raise
        report(f"{error}\nTrying {fallback[0]} instead.")
        return load_images(fallback[0], fallback[1:], report)


def _idx_set(name: str, folder: Path) -> Images:
    return Images(
        name,
        DATASETS[name].title,
        _idx(folder / "train-images-idx3-ubyte").unsqueeze(1),
        _idx(folder / "train-labels-idx1-ubyte").long(),
        _idx(folder / "t10k-images-idx3-ubyte").unsqueeze(1),
        _idx(folder / "t10k-labels-idx1-ubyte").long(),
    )


def _idx(path: Path) -> Tensor:
    """An idx file: two zero bytes, type (8: bytes), number of dimensions, then big-endian sizes and the data."""
    import torch

    data = path.read_bytes()
    if data[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} does not begin as an idx file of bytes; delete it to have it fetched again")
    sizes = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * data[3] :]), dtype=torch.uint8).view(sizes)


def _cifar(folder: Path) -> Images:
    import torch

    def records(names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        data = bytearray(b"".join((folder / f"{name}.bin").read_bytes() for name in names))
        rows = torch.frombuffer(data, dtype=torch.uint8).view(-1, 1 + 3 * 32 * 32)
        return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()

    return Images("cifar10", DATASETS["cifar10"].title, *records(CIFAR[:5]), *records(CIFAR[5:]))


def _digits() -> Images:
    import torch

    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError(
            "the digits data set lives in scikit-learn: pip install 'grace-dl[demo]'"
        ) from error
    bunch = load_digits()
    x = (torch.from_numpy(bunch.images) * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    y = torch.from_numpy(bunch.target).long()
    # As published: the last 297 images come from other writers than the first 1,500.
    return Images("digits", "Digits (scikit-learn)", x[:1500], y[:1500], x[1500:], y[1500:])
