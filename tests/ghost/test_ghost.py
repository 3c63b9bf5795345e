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
    within("triton", name, ghost_triton)


def within(kernels: str, name: str, run: Run) -> None:
    budgets = budget.read()
    held = budgets[kernels].get(name)
    found, lines = run(steps.measure, name)
    lower = budget.lowered(held, found)
    if os.environ.get("GRACE_LOWER_BUDGET"):
        budgets[kernels][name] = lower
        budget.write(budgets)
    assert lower == found, f"{name} with {kernels} kernels: {found}, but the budget is {held}\n{lines}"
