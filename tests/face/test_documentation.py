"""Every constructor explains itself: settings, reference, an example that runs; editors see the same."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import grace_dl as grace
from grace_dl import catalog


@pytest.mark.parametrize("name", catalog.builtin_names())
def test_a_constructor_documents_every_setting(name: str) -> None:
    constructor = getattr(grace, name)
    document = constructor.__doc__
    for parameter in inspect.signature(constructor).parameters:
        assert re.search(rf"^(\w+, )*{parameter}(, \w+)*: ", document, re.MULTILINE), parameter
    assert "Reference: " in document and catalog.info(name).reference and catalog.info(name).bits
    test = doctest.DocTestParser().get_doctest(document, {}, name, None, None)
    assert test.examples
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test).failed == 0


def test_the_stub_is_up_to_date(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(root / "scripts" / "generate_stub.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
