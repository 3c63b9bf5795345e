"""Where commands print."""

from __future__ import annotations

from rich.console import Console

WIDE = 120
"""Columns that every table fits in."""


def output() -> Console:
    """The terminal; or a file or pipe, which has no width of its own and gets one that every table fits in."""
    found = Console()
    return found if found.is_terminal or found.width >= WIDE else Console(width=WIDE)
