"""Where commands print."""

from __future__ import annotations

from rich.console import Console

WIDE = 120
"""A width in columns that fits every table."""


def output() -> Console:
    """The console; for files and pipes, which have no width, with one that fits every table."""
    found = Console()
    return found if found.is_terminal or found.width >= WIDE else Console(width=WIDE)
