"""Without a framework, its adapter says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from grace_dl.errors import MissingExtraError


@pytest.mark.parametrize("package", ["lightning", "accelerate", "transformers", "ray"])
def test_a_missing_framework_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"grace_dl.integrations.{package}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'grace-dl\[{package}\]'"):
        importlib.import_module(f"grace_dl.integrations.{package}")
