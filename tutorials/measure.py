"""Runs the programs of this section on two processes and writes what they print into README.md: python measure.py"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HOROVOD = [str(BIN / "horovodrun"), "-np", "2", "--gloo", sys.executable]
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
RUNS = [
    ("one process, PyTorch", [sys.executable], "torch/torch_mnist.py", []),
    ("Horovod, PyTorch", HOROVOD, "torch/torch_hvd_mnist.py", []),
    ("Horovod, PyTorch, top-k 1 %", HOROVOD, "torch/torch_hvd_mnist.py", ["--ratio", "0.01"]),
    ("DDP", TORCHRUN, "torch/torch_ddp_mnist.py", []),
    ("DDP, top-k 1 %", TORCHRUN, "torch/torch_ddp_mnist.py", ["--ratio", "0.01"]),
    ("pipeline of two halves", TORCHRUN, "torch/torch_pipeline_mnist.py", []),
    ("one process, TensorFlow", [sys.executable], "tensorflow/tf2_mnist.py", []),
    ("Horovod, TensorFlow", HOROVOD, "tensorflow/tf2_hvd_mnist.py", []),
    ("Horovod, TensorFlow, top-k 1 %", HOROVOD, "tensorflow/tf2_hvd_mnist.py", ["--ratio", "0.01"]),
]


def run(label: str, launcher: list[str], program: str, options: list[str]) -> str:
    """One row of the table."""
    done = subprocess.run(
        [*launcher, str(HERE / program), *options], capture_output=True, text=True, timeout=1800
    )
    if done.returncode:
        raise SystemExit(f"{program} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    accuracy = re.search(r"test accuracy ([\d.]+ %)", done.stdout)
    step = re.search(r"steps of ([\d.]+) ms(?:; ([\d,]+) bytes)?", done.stdout)
    assert accuracy is not None and step is not None, done.stdout
    row = f"| {label} | {step[2] or '0'} | {step[1]} | {accuracy[1]} |"
    print(row, flush=True)
    return row


def main() -> None:
    head = ["| program | bytes a worker and step | ms a step | test accuracy |", "|---|---|---|---|"]
    rows = [run(*each) for each in RUNS]
    page = HERE / "README.md"
    begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + "\n".join([*head, *rows]) + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
