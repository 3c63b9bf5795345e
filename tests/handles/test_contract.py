"""The contract of handles at DDP models and at optimizers, on `torch.distributed` and in one process."""

from __future__ import annotations

from typing import Any

from handles.contract import Check, at_each
from handles.targets import PLACES, Place


@at_each(PLACES)
def test_contract(launch: Any, place: Place, check: Check) -> None:
    check.hold(launch, place)
