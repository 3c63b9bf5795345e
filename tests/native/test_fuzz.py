"""A coverage-guided fuzzer on the compiled decoders, with the address and undefined-behaviour sanitizers.

For a longer run: `GRACE_FUZZ_SECONDS=600 ./test.sh tests/native/test_fuzz.py`.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

KERNELS = (
    "adaq_add",
    "basic",
    "blocks",
    "cast",
    "chunks",
    "dct",
    "eden",
    "inceptionn",
    "natural",
    "randomk",
    "signs",
    "sketch",
    "sparse",
    "ternary",
    "u8bit",
)
DECODERS = 19
WIDE, CODED, FRESH, LARGE = 1, 2, 4, 0x38
SECONDS = int(os.environ.get("GRACE_FUZZ_SECONDS", "20"))
FLAGS = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-sanitize-recover=all"]
SETS: dict[str, list[str]] = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    SETS["avx2"] = ["-mavx2", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"]
    FLAGS.append("-DGRACE_WITH_AVX2=1")
INSTALL = "on Debian and Ubuntu: apt-get install clang, and libclang-rt-<version>-dev of the same version"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A clang++ that links libFuzzer; the runtime is a package of its own, so one may come without the other."""
    found = shutil.which("clang++")
    if found is None:
        pytest.skip(f"clang++ is not installed, and only it has libFuzzer ({INSTALL})")
    folder = tmp_path_factory.mktemp("probe")
    source = folder / "probe.cpp"
    source.write_text(
        '#include <cstddef>\nextern "C" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }\n'
    )
    command = [found, "-fsanitize=fuzzer,address,undefined", str(source), "-o", str(folder / "probe")]
    probe = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if probe.returncode:
        pytest.skip(
            f"clang++ is installed without libFuzzer or the sanitizers ({INSTALL}): {probe.stderr[-300:]}"
        )
    return found


def build(compiler: str, native: Path, folder: Path) -> Path:
    """The kernels, where coverage guides the search, and the target, in every instruction set."""
    fuzzing = [compiler, *FLAGS, "-fsanitize=fuzzer-no-link,address,undefined", "-I", str(native), "-c"]
    work = [
        (native / "kernels" / f"{kernel}.cpp", f"{kernel}_{isa}", [f"-DGRACE_ISA={isa}", *flags])
        for isa, flags in SETS.items()
        for kernel in KERNELS
    ]
    work += [(native / name, Path(name).stem, []) for name in ("threads.cpp", "isa.cpp")]
    work.append((native / "tests" / "fuzz_decoders.cpp", "target", ["-DGRACE_ISA=baseline"]))
    objects = []
    width = os.cpu_count() or 1
    for at in range(0, len(work), width):
        jobs = []
        for source, name, flags in work[at : at + width]:
            objects.append(str(folder / f"{name}.o"))
            command = [*fuzzing, *flags, str(source), "-o", objects[-1]]
            jobs.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        for job in jobs:
            _, errors = job.communicate(timeout=300)
            assert job.returncode == 0, errors
    program = folder / "fuzz"
    link = [compiler, *FLAGS, "-fsanitize=fuzzer,address,undefined", *objects, "-pthread", "-o", str(program)]
    subprocess.run(link, check=True, timeout=300)
    return program


def seeds(folder: Path) -> int:
    """Write payloads for every decoder at several sizes (scales of one, codes of many kinds); return how many."""
    folder.mkdir()
    shapes = [(1, 1, 0, 0), (130, 7, 0, 2), (2000, 100, 3, 3), (4999, 1200, 0, 6), (300, 63, 40, 1)]
    for decoder in range(DECODERS):
        for wide in (0, WIDE):
            one = struct.pack("<d" if wide else "<f", 1.0)
            for shape in shapes:
                for flags in (0, CODED, CODED | FRESH):
                    head = struct.pack("<BBHHHB", decoder, flags | wide, *shape)
                    name = f"{decoder}_{flags | wide}_{shape[0]}"
                    codes = bytes([0]) if flags else bytes(range(0, 240, 7))
                    (folder / name).write_bytes(head + 4 * one + codes)
        large = struct.pack("<BBHHHB", decoder, LARGE | CODED, 40000, 30000, 100, 0)
        (folder / f"{decoder}_large").write_bytes(large + bytes(16))
    for decoder in range(3):
        # Indices 32, 66 and 100 of 101 elements, the last made 101 by one bit of its five low ones.
        head = struct.pack("<BBHHHB", decoder, CODED, 101, 3, 0, 0)
        (folder / f"{decoder}_beyond").write_bytes(head + struct.pack("<BIB", 1, 1, 4))
    return len(list(folder.iterdir()))


@pytest.mark.timeout(600 + SECONDS)
def test_decoders_survive_any_bytes(compiler: str, root: Path, tmp_path: Path):
    program = build(compiler, root / "native", tmp_path)
    corpus = tmp_path / "corpus"
    started = seeds(corpus)
    command = [str(program), f"-max_total_time={SECONDS}", "-seed=1", "-rss_limit_mb=2048", "-timeout=120"]
    command += ["-max_len=4096", "-print_final_stats=1", f"-artifact_prefix={tmp_path}/", str(corpus)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 300)
    kept = [path.read_bytes().hex() for path in tmp_path.glob("crash-*")]
    assert ran.returncode == 0, f"input {kept}\n{ran.stderr[-6000:]}"
    # Fewer would mean that the seeds were not even tried.
    executed = [line for line in ran.stderr.splitlines() if "number_of_executed_units" in line]
    assert int(executed[0].split()[-1]) > started
