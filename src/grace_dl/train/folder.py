"""Images in a folder with the layout of ImageNet: `root/train/<class>/*.jpg` and `root/val/<class>/*.jpg`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, MissingExtraError
from .datasets import Dataset

ENDINGS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff"}
MEAN, SCALE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Channel statistics of ImageNet, for values from 0 to 1."""


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("decoding images needs Pillow: pip install 'grace-dl[train]'") from error
    return Image


class _Files:
    def __init__(self, files: list[tuple[Path, int]], side: int) -> None:
        self.files, self.side = files, side
        self.labels = torch.tensor([label for _, label in files])

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        pixels = torch.stack([self._load(index, generator) for index in indices.tolist()])
        mean, scale = (torch.tensor(colours).view(1, 3, 1, 1) for colours in (MEAN, SCALE))
        return (pixels.float() / 255 - mean) / scale, self.labels[indices]

    def _load(self, index: int, generator: torch.Generator | None) -> Tensor:
        library = _pillow()
        side = self.side
        with library.open(self.files[index][0]) as file:
            image = file.convert("RGB")
        if generator is None:
            # Centre crop, after resizing the short side to 8/7 of the target size (256 for 224).
            factor = side * 8 / 7 / min(image.size)
            width, height = (max(side, round(length * factor)) for length in image.size)
            image = image.resize((width, height), library.BILINEAR)
            left, top = (width - side) // 2, (height - side) // 2
            image = image.crop((left, top, left + side, top + side))
        else:
            width, height = image.size
            box = _random_box(width, height, generator)
            image = image.resize((side, side), library.BILINEAR, box=box)
            if torch.rand((), generator=generator) < 0.5:
                image = image.transpose(library.FLIP_LEFT_RIGHT)
        data = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return data.view(side, side, 3).permute(2, 0, 1)


def _random_box(width: int, height: int, generator: torch.Generator) -> tuple[int, int, int, int]:
    """A random crop of 8 to 100 % of the area, aspect ratio between 3:4 and 4:3 (Szegedy 2015, section 6)."""
    for _ in range(10):
        u = torch.rand(4, generator=generator).tolist()
        area = width * height * (0.08 + 0.92 * u[0])
        shape = math.exp(math.log(3 / 4) + u[1] * 2 * math.log(4 / 3))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(u[2] * (width - w + 1)), int(u[3] * (height - h + 1))
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


class ImageFolder(Dataset):
    """A folder with `train` and `val` (or `test`), each with one folder of images per class.

    image_size: side of the square crop. num_classes: checked against the folders.
    """

    def __init__(self, root: str, image_size: int = 224, num_classes: int = 1000) -> None:
        _pillow()
        top = Path(root).expanduser()
        parts = {name: top / name for name in ("train", "val", "test") if (top / name).is_dir()}
        if "train" not in parts or len(parts) < 2:
            raise ConfigError(
                f"root={root!r} must hold the folders train and val, each with one folder of images a class; found: "
                f"{', '.join(parts) or 'neither'}. Set configs.dataset.root."
            )
        classes = sorted(path.name for path in parts["train"].iterdir() if path.is_dir())
        if len(classes) != num_classes:
            raise ConfigError(
                f"num_classes={num_classes}, but {parts['train']} holds {len(classes)} folders; set configs.dataset.num_classes."
            )
        place = {name: number for number, name in enumerate(classes)}
        train, test = (
            _Files(_list(folder, place), image_size)
            for folder in (parts["train"], parts.get("val") or parts["test"])
        )
        super().__init__(train, test, num_classes)


def _list(folder: Path, place: dict[str, int]) -> list[tuple[Path, int]]:
    found = [
        (path, place[kind.name])
        for kind in sorted(folder.iterdir())
        if kind.is_dir() and kind.name in place
        for path in sorted(kind.rglob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    if not found:
        raise ConfigError(f"{folder} holds no images ({', '.join(sorted(ENDINGS))}).")
    return found
