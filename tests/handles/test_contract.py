"""The contract of handles at every target of `torch.distributed`, and in one process."""

from __future__ import annotations

from typing import Any

import pytest

from handles.contract import CHECKS, Check
from handles.targets import PLACES, Place


@pytest.mark.parametrize(
    "place, check",
    [
        pytest.param(place, check, id=check.at(str(place)))
        for place in PLACES
        for check in CHECKS
        if check.applies_to(place.target)
    ],
)
def test_contract(launch: Any, place: Place, check: Check) -> None:
    answers = place.run(launch, place.world, check.work, place.target, *check.arguments)
    check.verify(place.world, answers)
