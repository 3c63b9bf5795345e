"""Real data for demos, benchmarks and tests: fetched once, checked by SHA-256, cached for the user.

    from grace_dl.data import load_images
    images = load_images("mnist")          # images.train_x: uint8 [60000, 1, 28, 28]

`GRACE_DATA` names another cache folder. Nothing is fetched on import, and nothing here is needed for training.
"""

from __future__ import annotations

from .fetch import DataError, cache_folder, fetch
from .images import Images, load_images
from .sources import DATASETS
from .text import load_text

__all__ = ["DATASETS", "DataError", "Images", "cache_folder", "fetch", "load_images", "load_text"]
