"""The Triton kernels give the bits of the reference ones, run by Triton's interpreter, and compile to exact arithmetic.

An optional group: it needs Triton (`pip install 'grace-dl[triton]'`), but no GPU; `-m triton` runs it alone.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'grace-dl[triton]'")

from kernels import triton_cases as cases

pytestmark = pytest.mark.triton
Run = Callable[..., None]


def process(interpret: str, cache: Path) -> Iterator[Run]:
    """Runs a case in one process that is kept; the environment is what it starts with."""
    wanted = {"TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(os.getpid).result()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        yield lambda case, *arguments: pool.submit(case, *arguments).result(timeout=240)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from process("1", tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from process("0", tmp_path_factory.mktemp("triton"))


each_method = pytest.mark.parametrize("name", cases.METHODS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@each_method
@each_dtype
def test_sizes_alignment_and_sources(interpreted: Run, name: str, dtype: torch.dtype) -> None:
    interpreted(cases.sizes, name, dtype)


@each_method
@each_dtype
def test_extreme_values(interpreted: Run, name: str, dtype: torch.dtype) -> None:
    interpreted(cases.extremes, name, dtype)


@each_dtype
def test_votes(interpreted: Run, dtype: torch.dtype) -> None:
    interpreted(cases.votes, dtype)


@pytest.mark.parametrize("case", [cases.generator, cases.forming, cases.broken, cases.empty])
def test_one_by_one(interpreted: Run, case: Callable[[], None]) -> None:
    interpreted(case)


def test_the_cpu_is_refused_without_the_interpreter(plain: Run) -> None:
    plain(cases.refused_on_the_cpu)


@pytest.mark.parametrize(
    ("dtype", "n"), [(torch.float32, 2571), (torch.float64, 2571), (torch.float32, 1)], ids=str
)
def test_compiles_to_exact_arithmetic(plain: Run, dtype: torch.dtype, n: int) -> None:
    plain(cases.compiled, dtype, n)
