"""The processes that pretend to have a CUDA device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ghost import steps
from processes import Run, process


@pytest.fixture(scope="session")
def guard(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library of guard.cpp."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("the pretended device needs a C++ compiler: apt install g++")
    source, target = Path(__file__).with_name("guard.cpp"), tmp_path_factory.mktemp("guard") / "guard.so"
    folder = Path(torch.__file__).parent
    command = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{folder / 'include'}", str(source)]
    subprocess.run([*command, "-o", str(target), f"-L{folder / 'lib'}", "-lc10"], check=True, timeout=120)
    return str(target)


def _prepared(guard: str, kernels: str) -> Iterator[Run]:
    for run in process({"TRITON_INTERPRET": "1"}):
        run(steps.setup, guard, kernels)
        yield run


@pytest.fixture(scope="session")
def ghost(guard: str) -> Iterator[Run]:
    """Runs a case of `steps` with the reference kernels on the pretended device, as without Triton."""
    yield from _prepared(guard, "reference")


@pytest.fixture(scope="session")
def ghost_triton(guard: str) -> Iterator[Run]:
    """The same with the Triton kernels, in Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed: pip install 'grace-dl[triton]'")
    yield from _prepared(guard, "triton")
