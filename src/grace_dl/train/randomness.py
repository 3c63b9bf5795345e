"""The global random number generators of a process; their state is saved as tensors and numbers only."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # noqa: NPY002 (user code uses the global generator)
    torch.manual_seed(seed)


def state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    legacy: Any = numpy.random.get_state()  # noqa: NPY002
    name, keys, place, has_gauss, cached = legacy
    return {
        "python": [version, list(words), gauss],
        "numpy": [
            str(name),
            torch.from_numpy(keys.astype("int64")),
            int(place),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore(saved: dict[str, Any]) -> None:
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = saved["numpy"]
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))  # noqa: NPY002
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])
