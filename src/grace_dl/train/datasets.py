"""Data sets: images, text, and synthetic samples of any shape. (Images in a folder: `folder.py`.)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ..data import load_images, load_text
from ..errors import ConfigError
from ..settings import whole


class Split(Protocol):
    """A part of a data set; with a generator, samples are augmented at random."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]: ...


class Dataset:
    """Training and test data."""

    def __init__(self, train: Split, test: Split, num_classes: int) -> None:
        self.train, self.test, self.num_classes = train, test, num_classes


# Images -------------------------------------------------------------------------------------------------


class _Pixels:
    def __init__(self, x: Tensor, y: Tensor, mean: Tensor, scale: Tensor, pad: int) -> None:
        self.x, self.y, self.mean, self.scale, self.pad = x, y, mean, scale, pad

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        x = self.x[indices]
        if generator is not None and self.pad:
            x = _crop_and_flip(x, self.pad, generator)
        return (x.float() - self.mean) / self.scale, self.y[indices]


def _crop_and_flip(x: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Shift each image by up to `pad` pixels, and mirror it half the time (He 2016, section 4.2)."""
    count, _, height, width = x.shape
    padded = functional.pad(x, (pad, pad, pad, pad))
    dy, dx = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator)
    rows = dy + torch.arange(height)
    columns = dx + torch.arange(width)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    each = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Images(Dataset):
    """Small images that `grace_dl.data` fetches: cifar10, mnist, fashion-mnist, digits.

    augment: pixels by which training images are shifted at random (they are mirrored too); 0 disables augmentation.
    """

    def __init__(
        self, name: str = "cifar10", augment: int = 0, num_classes: int = 10, image_size: int | None = None
    ) -> None:
        images = load_images(name)
        if num_classes != images.classes:
            raise ConfigError(f"num_classes={num_classes}, but {name} has {images.classes} classes.")
        side = images.train_x.shape[-1]
        if image_size not in (None, side):
            raise ConfigError(f"image_size={image_size}, but the images of {name} have {side} pixels a side.")
        sample = images.train_x[:10000].float()
        mean = sample.mean((0, 2, 3)).view(1, -1, 1, 1)
        scale = sample.std((0, 2, 3)).view(1, -1, 1, 1)
        train = _Pixels(images.train_x, images.train_y, mean, scale, augment)
        super().__init__(train, _Pixels(images.test_x, images.test_y, mean, scale, 0), images.classes)


class CIFAR(Images):
    """CIFAR-10, training images shifted by up to four pixels and mirrored at random."""

    def __init__(self, augment: int = 4, num_classes: int = 10, image_size: int = 32) -> None:
        super().__init__("cifar10", augment, num_classes, image_size)


# Text ---------------------------------------------------------------------------------------------------

ASCII = 128


class _Windows:
    def __init__(self, codes: Tensor, length: int) -> None:
        self.codes, self.length = codes, length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        start = indices * self.length
        if generator is not None:
            # Windows start at random offsets, so that epochs are split at different positions.
            last = len(self.codes) - 1 - self.length
            shift = torch.randint(0, self.length, (len(indices),), generator=generator)
            start = (start + shift).clamp_(max=last)
        window = self.codes[start[:, None] + torch.arange(self.length + 1)].long()
        return window[:, :-1], window[:, 1:]


def _read(root: str) -> str:
    try:
        return Path(root).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"root={root!r} cannot be read ({error}); give a text file in UTF-8.") from None


class Characters(Dataset):
    """Character-level text: predict the next character. The last tenth is the test data.

    root: a text file; by default the works of Shakespeare. length: characters per sample. most: use only so many characters
    from the start of the text.
    """

    def __init__(
        self, length: int = 128, root: str | None = None, num_classes: int = ASCII, most: int | None = None
    ) -> None:
        if num_classes != ASCII:
            raise ConfigError(f"num_classes={num_classes}: characters are ASCII, of which there are {ASCII}.")
        text = load_text() if root is None else _read(root)
        if most is not None:
            text = text[: whole("most", most, "characters of the text to use", least=1)]
        codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8)
        cut = len(codes) * 9 // 10
        if length < 1 or len(codes) - cut <= length:
            raise ConfigError(f"length={length} does not fit a text of {len(codes):,} characters.")
        super().__init__(_Windows(codes[:cut], length), _Windows(codes[cut:], length), ASCII)


# Synthetic ----------------------------------------------------------------------------------------------


class _Samples:
    def __init__(
        self, size: int, first: int, shape: list[int], classes: int, noise: float, tokens: int, seed: int
    ) -> None:
        self.size, self.first, self.shape, self.noise, self.tokens, self.seed = (
            size,
            first,
            shape,
            noise,
            tokens,
            seed,
        )
        generator = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(classes, math.prod(shape), generator=generator)

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        own = torch.Generator()
        x = torch.empty(len(indices), self.centres.shape[1])
        for row, index in zip(x, indices.tolist()):
            row.normal_(generator=own.manual_seed((self.seed << 32) + self.first + index))
        y = (indices + self.first) % len(self.centres)
        x = self.centres[y] + self.noise * x
        if self.tokens:
            x = (torch.special.ndtr(x) * self.tokens).long().clamp_(0, self.tokens - 1)
        return x.view(-1, *self.shape), y


class Synthetic(Dataset):
    """Samples of any shape around a random centre for each class; learnable, generated on demand, reproducible.

    size, test_size: samples. noise: their spread around the centre. tokens: integers below this instead of reals.
    """

    def __init__(
        self,
        shape: int | Sequence[int] = (3, 32, 32),
        num_classes: int = 10,
        size: int = 4096,
        test_size: int = 1024,
        noise: float = 2.0,
        tokens: int = 0,
        seed: int = 0,
    ) -> None:
        sizes: list[int] = [shape] if isinstance(shape, int) else list(shape)
        if not sizes or min(sizes) < 1:
            raise ConfigError(f"shape={shape!r} must be positive sizes, such as [3, 32, 32].")
        if min(num_classes, size, test_size) < 1 or noise < 0 or tokens < 0:
            raise ConfigError(
                "num_classes, size and test_size must be positive, noise and tokens not negative."
            )
        common = (sizes, num_classes, noise, tokens, seed)
        super().__init__(_Samples(size, 0, *common), _Samples(test_size, size, *common), num_classes)
