"""The example runs as its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("opt", ["acpsgd", "ssgd"])
def test_mnist_example(root: Path, opt: str) -> None:
    """On the images inside scikit-learn, so that nothing is fetched."""
    folder = root / "examples" / "acpsgd"
    done = subprocess.run(
        ["bash", "mnist.sh", "--data", "digits", "--lr", "0.1"],
        cwd=folder,
        env={**os.environ, "PY": sys.executable, "opt": opt, "epochs": "6", "bs": "16"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, accuracy = re.findall(r"accuracy ([0-9.]+)%", done.stdout)
    assert float(accuracy) > 75, done.stdout
    sent, dense = re.findall(r"sent per step ([0-9.]+) kB of ([0-9.]+)", done.stdout)[-1]
    assert (float(sent) < 0.1 * float(dense)) == (opt == "acpsgd")
