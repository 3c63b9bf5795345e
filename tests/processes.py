"""Test cases in a process of their own, which is kept: for what a library decides once, at its import."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from launcher_environment import changed

Run = Callable[..., Any]


def process(environment: Mapping[str, str], timeout: float = 240) -> Iterator[Run]:
    """Yields a function that runs a case, `run(case, *arguments)`, in a process that starts with these variables."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        with changed({"OMP_NUM_THREADS": "1", **environment}):
            pool.submit(os.getpid).result()
        yield lambda case, *arguments: pool.submit(case, *arguments).result(timeout=timeout)
