"""What `pip install` ships: the whole package, also where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import grace_dl


def test_the_wheel_holds_every_module(wheel: Path, root: Path) -> None:
    source = root / "src"
    expected = {
        str(path.relative_to(source)) for path in source.rglob("*.py*") if path.suffix in (".py", ".pyi")
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert expected <= names
    assert {f"{package}/py.typed" for package in ("grace_dl", "acpsgd", "dgc")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_works_without_the_compiled_part(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, acpsgd, dgc.optim, grace_dl\n"
        "from grace_dl import catalog, kernels\n"
        f"assert grace_dl.__file__.startswith({str(tmp_path)!r}), grace_dl.__file__\n"
        "assert kernels.of(torch.empty(0)).__name__ == 'grace_dl.kernels.reference'\n"
        "x = torch.randn(5000)\n"
        "for name in catalog.methods():\n"
        "    grace_dl.manual(name).step(x, 'x')\n"
        "print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "fine", done.stderr


SCRIPT = """
import acpsgd
import torch
from dgc.compression import DGCCompressor
from dgc.horovod.optimizer import DistributedOptimizer
from dgc.memory import DGCSGDMemory
from dgc.optim.sgd import DGCSGD
from grace_dl.dist import Communicator, Compressor, Memory
from grace_dl.dist.communicator.allgather import Allgather
from grace_dl.dist.compressor.topk import TopKCompressor
from grace_dl.dist.helper import grace_from_params
from grace_dl.dist.memory.residual import ResidualMemory
from grace_dl.tensorflow.communicator.allgather import Allgather as TFAllgather
from grace_dl.torch.compressor.powersgd import PowerSGDCompressor


class Own(Communicator):
    def send_receive(self, tensors: list[torch.Tensor], name: str, ctx: object) -> torch.Tensor:
        return tensors[0]


grc = Allgather(TopKCompressor(0.3), ResidualMemory())
other = grace_from_params({"compressor": "topk", "memory": "residual", "communicator": "allgather"})
acpsgd.init()
reveal_type(TopKCompressor)
reveal_type(other)
TopKCompressor("0.3")
DGCCompressor(0.001, memory=DGCSGDMemory(momentum=0.9)).warmup_compress_ratio("first")
"""


def test_a_users_type_checker_resolves_the_lines_of_the_guides(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "script.py"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": "installed"},
    )
    errors = [line for line in done.stdout.splitlines() if line.startswith("script.py") and "error" in line]
    assert len(errors) == 2 and "TopKCompressor" in errors[0] and "warmup_compress_ratio" in errors[1], (
        done.stdout
    )
    assert (
        "type[grace_dl.compat.compressors.TopKCompressor]" in done.stdout
        or "def (compress_ratio" in done.stdout
    )
    assert "grace_dl.compat.communicators.Communicator" in done.stdout


def test_the_version_is_written_once(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == grace_dl.__version__
