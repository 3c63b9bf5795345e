"""The Triton kernels give the bits of the reference ones, run by Triton's interpreter, and compile to exact arithmetic.

An optional group: it needs Triton (`pip install 'grace-dl[triton]'`), but no GPU; `-m triton` runs it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'grace-dl[triton]'")

from kernels import triton_cases as cases
from processes import Run, process

pytestmark = pytest.mark.triton


def environment(interpret: str, folder: pytest.TempPathFactory) -> dict[str, str]:
    return {"TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(folder.mktemp("triton"))}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from process(environment("1", tmp_path_factory))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from process(environment("0", tmp_path_factory))


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


@each_method
@each_dtype
def test_buckets(interpreted: Run, name: str, dtype: torch.dtype) -> None:
    interpreted(cases.buckets, name, dtype)


@each_dtype
def test_committing_what_was_sent(interpreted: Run, dtype: torch.dtype) -> None:
    interpreted(cases.committing, dtype)


@each_dtype
def test_momentum_correction(interpreted: Run, dtype: torch.dtype) -> None:
    interpreted(cases.correcting, dtype)


@each_dtype
def test_votes(interpreted: Run, dtype: torch.dtype) -> None:
    interpreted(cases.votes, dtype)


@pytest.mark.parametrize("case", [cases.generator, cases.forming, cases.coding, cases.broken, cases.empty])
def test_one_by_one(interpreted: Run, case: Callable[[], None]) -> None:
    interpreted(case)


def test_the_cpu_is_refused_without_the_interpreter(plain: Run) -> None:
    plain(cases.refused_on_the_cpu)


@pytest.mark.parametrize(
    ("dtype", "n"), [(torch.float32, 2571), (torch.float64, 2571), (torch.float32, 1)], ids=str
)
def test_compiles_to_exact_arithmetic(plain: Run, dtype: torch.dtype, n: int) -> None:
    plain(cases.compiled, dtype, n)
