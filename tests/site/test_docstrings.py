"""Docstrings as this project writes them become reStructuredText."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType

import pytest

from script_modules import load


@pytest.fixture(scope="module")
def docstrings(root: Path) -> ModuleType:
    return load(root / "scripts" / "site" / "docstrings.py")


def test_examples(docstrings: ModuleType) -> None:
    assert doctest.testmod(docstrings).failed == 0


def test_markup_is_escaped_and_structure_is_kept(docstrings: ModuleType) -> None:
    document = """Sends |x| of `grad`s, by *name_.

    ratio: share of `x`.

        y = 2 * x

    >>> 1 + 1
    2
    """
    assert docstrings.to_rst(document) == [
        r"Sends \|x\| of ``grad``\ s, by \*name\_.",
        "",
        "- ``ratio``: share of ``x``.",
        "",
        "::",
        "",
        "    y = 2 * x",
        "",
        ">>> 1 + 1",
        "2",
        "",
    ]
