"""`import grace_dl` is quick and pulls in no framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

import grace_dl

HEAVY = ("torch", "numpy", "tensorflow", "horovod", "rich", "matplotlib", "sklearn")


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_no_framework_is_imported() -> None:
    code = f"import sys, grace_dl; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_listing_the_names_imports_nothing() -> None:
    code = f"import sys, grace_dl; dir(grace_dl); print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(code).strip() == "[]"
    assert dir(grace_dl) == sorted(grace_dl.__all__)
    assert {"attach", "manual", "topk", "powersgd", "by_parameter", "schedule", "parse"} <= set(dir(grace_dl))


def test_a_method_loads_no_engine() -> None:
    code = "import sys, grace_dl as grace; grace.topk(0.1); print([m for m in ('tensorflow', 'horovod') if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_command_line_starts_without_a_framework() -> None:
    code = (
        "import sys; from grace_dl.cli.main import build_parser; build_parser(); "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_import_takes_under_50_ms() -> None:
    # Processor time, which other load on the machine does not stretch; the quickest of a few processes.
    code = "import time; t = time.process_time(); import grace_dl; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(5)) < 0.050


@pytest.mark.parametrize("name", [name for name in grace_dl.__all__ if name != "__version__"])
def test_public_names_load(name: str) -> None:
    assert getattr(grace_dl, name) is not None
    assert name in dir(grace_dl)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        grace_dl.no_such_thing  # type: ignore[attr-defined] # noqa: B018
