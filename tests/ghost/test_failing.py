"""Failing ranks on a device, where waiting for a collective does not raise: they are seen through the store."""

from __future__ import annotations

import pytest

from ghost import failing
from processes import Run

each_exchange = pytest.mark.parametrize("name", ["bf16", "int8", "topk", "threshold", "powersgd"])


@each_exchange
def test_a_rank_that_does_not_come_is_reported_within_the_time_limit(ghost: Run, name: str) -> None:
    ghost(failing.stuck, name)


@each_exchange
def test_a_rank_that_raises_is_reported_at_once(ghost: Run, name: str) -> None:
    ghost(failing.left, name)


@each_exchange
def test_a_step_that_all_ranks_give_up_does_not_disturb_the_next(ghost: Run, name: str) -> None:
    ghost(failing.together, name)
