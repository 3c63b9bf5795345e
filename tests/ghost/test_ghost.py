"""What a program on a CUDA device may rely on, without one: the same results as on the CPU, one order of collectives,
no tensor of the wrong device, nothing read before it arrived, state that follows its gradients, and few host waits.

`-m triton` runs it with the Triton kernels as well.
"""

from __future__ import annotations

import os

import pytest
import torch

from contract.cases import METHODS, NAMES
from ghost import budget, steps
from processes import Run

each_method = pytest.mark.parametrize("name", NAMES)
OTHER_DTYPES = [torch.float16, torch.bfloat16, torch.float64]


@each_method
def test_results_are_those_of_the_cpu(ghost: Run, name: str) -> None:
    ghost(steps.compare, name)


@each_method
def test_other_dtypes(ghost: Run, name: str) -> None:
    for dtype in OTHER_DTYPES:
        ghost(steps.compare_dtype, name, dtype)


@pytest.mark.parametrize("name", [name for name in NAMES if METHODS[name].memories[0] != "none"])
def test_state_follows_its_gradients_to_another_device(ghost: Run, name: str) -> None:
    ghost(steps.moved, name)


@each_method
def test_steps_that_are_not_finite_are_skipped(ghost: Run, name: str) -> None:
    ghost(steps.skipped, name)


@each_method
def test_host_waits_and_launches_are_within_the_budget(ghost: Run, name: str) -> None:
    within("reference", name, ghost)


@pytest.mark.triton
@each_method
def test_with_triton(ghost_triton: Run, name: str) -> None:
    ghost_triton(steps.compare, name)
    # The others have no Triton kernels, so that their budget is that of the reference.
    if name in budget.read()["triton"] or os.environ.get("GRACE_LOWER_BUDGET"):
        within("triton", name, ghost_triton)


def test_every_method_has_a_budget() -> None:
    budgets = budget.read()
    assert [budget.missing("reference", name) for name in NAMES if name not in budgets["reference"]] == []
    for held in budgets.values():
        assert set(held) <= set(NAMES), "the budget has entries of methods that are gone; delete them"


def test_a_method_without_a_budget_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRACE_LOWER_BUDGET", raising=False)
    with pytest.raises(AssertionError, match=r"'new' has no budget.*GRACE_LOWER_BUDGET=1 \./test\.sh"):
        within("reference", "new", lambda *_: pytest.fail("measured"))


def within(kernels: str, name: str, run: Run) -> None:
    budgets, writing = budget.read(), os.environ.get("GRACE_LOWER_BUDGET")
    held = budgets[kernels].get(name)
    assert held or writing, budget.missing(kernels, name)
    found, lines = run(steps.measure, name)
    lower = budget.lowered(held, found)
    if writing:
        budgets[kernels][name] = lower
        budget.write(budgets)
    assert lower == found, f"{name} with {kernels} kernels: {found}, but the budget is {held}\n{lines}"
