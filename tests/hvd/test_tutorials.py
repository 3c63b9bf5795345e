"""The tutorials' programs on one process and on two, and what their pages show of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd.cluster import ROOT, settings

FOLDER = ROOT / "tutorials"
BIN = Path(sys.executable).parent
HOROVOD = [str(BIN / "horovodrun"), "-np", "2", "--gloo", sys.executable]
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
PROGRAMS: dict[str, list[str]] = {
    "torch/torch_mnist.py": [],
    "torch/torch_hvd_mnist.py": HOROVOD,
    "torch/torch_ddp_mnist.py": TORCHRUN,
    "torch/torch_pipeline_mnist.py": TORCHRUN,
    "tensorflow/tf2_mnist.py": [],
    "tensorflow/tf2_hvd_mnist.py": HOROVOD,
}


def run(command: list[str]) -> str:
    env = {**os.environ, **settings()}
    env["PATH"] = os.pathsep.join([str(BIN), env["PATH"]])
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def accuracy(output: str) -> float:
    (found,) = re.findall(r"test accuracy ([\d.]+) %", output)
    return float(found)


@pytest.mark.parametrize("program", PROGRAMS)
def test_on_one_process(program):
    assert accuracy(run([sys.executable, str(FOLDER / program), "--epochs", "1"])) > 94


@pytest.mark.parametrize("program", [p for p, launcher in PROGRAMS.items() if launcher])
def test_on_two_processes_as_it_stands(program):
    assert accuracy(run([*PROGRAMS[program], str(FOLDER / program)])) > 97


@pytest.mark.parametrize(
    "program", ["torch/torch_hvd_mnist.py", "torch/torch_ddp_mnist.py", "tensorflow/tf2_hvd_mnist.py"]
)
def test_on_two_processes_compressed(program):
    output = run([*PROGRAMS[program], str(FOLDER / program), "--ratio", "0.01"])
    assert accuracy(output) > 97
    (sent,) = re.findall(r"([\d,]+) bytes of gradients", output)
    assert int(sent.replace(",", "")) < 4 * 535_818 / 20


@pytest.mark.parametrize("page", ["torch", "tensorflow"])
def test_pages_show_lines_of_the_programs(page):
    programs = "\n".join(path.read_text() for path in (FOLDER / page).glob("*.py"))
    text = (FOLDER / page / "README.md").read_text()
    for block in re.findall(r"^```diff\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if "model.fit" in block:
            continue
        for line in block.splitlines():
            if line.startswith("+"):
                assert line[1:] in programs, line


def test_figures_are_those_the_script_draws(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import figures as f; from pathlib import Path\n"
    code += f"f.FOLDER = Path({str(tmp_path)!r}); f.weights(); f.data(); f.ring()"
    run([sys.executable, "-c", code])
    for path in (FOLDER / "figures").glob("*.svg"):
        assert (tmp_path / path.name).stat().st_size > 1000
