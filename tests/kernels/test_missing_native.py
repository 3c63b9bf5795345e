"""Without the compiled kernels GRACE works, says once that it is slower and why, and results name the backend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HIDE = "import sys; sys.modules['grace_dl._native'] = None\n"


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_notice_comes_once_with_the_remedy(tmp_path: Path) -> None:
    code = """
import torch, grace_dl as grace
for _ in range(3):
    with grace.manual("topk:0.5,dense_below=1") as handle:
        handle.step(torch.arange(8.0), "w")
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("several times slower") == 1
    assert "reinstall with a C++ compiler" in done.stderr


def test_results_of_one_backend_are_not_shown_as_those_of_another(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from grace_dl.bench.results import Results
results = Results(Path("out.json"), "step", {})
results.add("a", {"method": "none"})
"""
    assert run(code, tmp_path).returncode == 0
    saved = json.loads((tmp_path / "out.json").read_text())
    assert saved["machine"]["kernels"] == saved["records"][0]["backend"] == "reference"
    saved["machine"]["kernels"] = "native"
    (tmp_path / "out.json").write_text(json.dumps(saved))
    done = run(code, tmp_path)
    assert (
        done.returncode
        and "another machine ({'kernels': 'native'} instead of {'kernels': 'reference'})" in done.stderr
    )
