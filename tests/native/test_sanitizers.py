"""The C++ tests, built with the address and undefined-behaviour sanitizers and run once."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = ("topk", "dgc", "sparse", "randomk", "eden")
SANITIZE = [
    "-std=c++17",
    "-O1",
    "-g",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
AVX2 = ["-mavx2", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"]
SETS: dict[str, list[str]] = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    SETS["avx2"] = AVX2
    SANITIZE.append("-DGRACE_WITH_AVX2=1")


def test_sparse_kernels_under_sanitizers(root: Path, tmp_path: Path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed, and nothing can be compiled without it")
    native = root / "native"
    jobs = []
    objects = []

    def build(source: Path, name: str, *flags: str) -> None:
        target = tmp_path / f"{name}.o"
        objects.append(str(target))
        command = [compiler, *SANITIZE, *flags, "-I", str(native), "-c", str(source), "-o", str(target)]
        jobs.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))

    for isa, flags in SETS.items():
        for kernel in KERNELS:
            source = native / "kernels" / f"{kernel}.cpp"
            build(source, f"{kernel}_{isa}", f"-DGRACE_ISA={isa}", "-Wno-psabi", *flags)
    for name in ("threads", "isa"):
        build(native / f"{name}.cpp", name)
    build(native / "tests" / "sparse.cpp", "main", "-DGRACE_ISA=baseline")
    for job in jobs:
        _, errors = job.communicate(timeout=600)
        assert job.returncode == 0, errors
    program = tmp_path / "sparse"
    subprocess.run([compiler, *SANITIZE, *objects, "-pthread", "-o", str(program)], check=True, timeout=300)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "baseline: fine" in ran.stdout
