"""The contract of handles at every target under Horovod, on two real processes."""

from __future__ import annotations

import pytest

from handles.contract import CHECKS, Check
from hvd.cluster import Launch, launch

TARGETS = {
    "HorovodOptimizerTarget": True,
    "TapeTarget": False,
    "KerasTarget": False,
    "Keras2Target": False,
}
"""By name, because only ranks import Horovod; and whether it has a backward pass."""


CASES = [(t, c) for t, backward in TARGETS.items() for c in CHECKS if backward or not c.backward]


@pytest.fixture(scope="module")
def ranks() -> Launch:
    return launch(2, "handle_cases", [check.at(target) for target, check in CASES], timeout=900)


@pytest.mark.parametrize("target, check", [pytest.param(t, c, id=c.at(t)) for t, c in CASES])
def test_contract(ranks: Launch, target: str, check: Check) -> None:
    check.verify(ranks.size, ranks[check.at(target)])
