"""Text for language models."""

from __future__ import annotations

from ..errors import ConfigError
from .fetch import Report, fetch
from .sources import DATASETS


def load_text(name: str = "shakespeare", report: Report = lambda line: None) -> str:
    """The works of Shakespeare as one text of about five million characters."""
    if name != "shakespeare":
        raise ConfigError(f"unknown text {name!r}. Known: shakespeare.")
    return (fetch(DATASETS[name], report) / "shakespeare.txt").read_text("utf-8")
