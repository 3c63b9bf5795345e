"""The contract of handles at every other target: sharded models, hand-written loops, local steps, 1-bit Adam."""

from __future__ import annotations

from typing import Any

from handles.contract import Check, at_each
from handles.targets import OTHER_PLACES, Place


@at_each(OTHER_PLACES)
def test_contract(launch: Any, place: Place, check: Check) -> None:
    check.hold(launch, place)
