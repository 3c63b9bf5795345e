"""The budget of host waits and launches, by kernels and method. It can only go down.

With `GRACE_LOWER_BUDGET=1` in the environment, the tests write figures that are lower than the budget, and those of methods that
have none yet.

Six figures each: host waits during backward, host waits at the end of the step, and launches, of a small job (2 ranks,
1 bucket of 1 compressed and 1 small parameter) and of a large one (3 ranks, 2 buckets of 3 compressed and 2 small
parameters). The goal is 0 and 1 waits for both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).with_name("budget.json")
Figures = dict[str, dict[str, list[int]]]


def read() -> Figures:
    found: Figures = json.loads(FILE.read_text())
    return found


def missing(kernels: str, name: str) -> str:
    """The error for a method without an entry.

    >>> print(missing("reference", "topk"))
    'topk' has no budget with reference kernels; GRACE_LOWER_BUDGET=1 ./test.sh --quick tests/ghost -k 'budget and topk' adds it.
    """
    chosen = (
        f"-m triton tests/ghost -k {name}" if kernels == "triton" else f"tests/ghost -k 'budget and {name}'"
    )
    return f"{name!r} has no budget with {kernels} kernels; GRACE_LOWER_BUDGET=1 ./test.sh --quick {chosen} adds it."


def lowered(held: Sequence[int] | None, found: Sequence[int]) -> list[int]:
    """A budget never rises.

    >>> lowered([1, 2, 3], [2, 1, 3])
    [1, 1, 3]
    """
    return list(found) if held is None else [min(pair) for pair in zip(held, found, strict=True)]


def write(figures: Figures) -> None:
    """One line a method, so that changes are easy to read."""
    parts = []
    for kernels, of_methods in figures.items():
        lines = [f"    {json.dumps(name)}: {json.dumps(of_methods[name])}" for name in sorted(of_methods)]
        parts.append(f"  {json.dumps(kernels)}: {{\n" + ",\n".join(lines) + "\n  }")
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n")
