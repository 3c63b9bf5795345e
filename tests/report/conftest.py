"""Result files of every kind, measured once and small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grace_dl.bench.virtual_hosts import able
from grace_dl.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """kernels, step, link and accuracy as the commands write them here, and the published traffic."""
    folder = tmp_path_factory.mktemp("results")
    files = {name: folder / f"{name}.json" for name in ("kernels", "step", "link", "traffic", "accuracy")}

    def bench(name: str, *options: str) -> None:
        assert main(["bench", name, "--quick", "--out", str(files[name]), *options]) == 0

    bench("kernels", "--methods", "none", "topk", "--sizes", "1000", "--threads", "1", "2")
    bench("step", "--rounds", "3", "--methods", "topk", "int8")
    small = [
        "--configs.dataset.size",
        "256",
        "--configs.dataset.shape",
        "[3,8,8]",
        "--configs.dataset.noise",
        "4.0",
    ]
    bench("accuracy", "--methods", "bf16", *small)  # beside ddp
    if able() is None:
        bench("link", "--rounds", "3", "--methods", "topk", "--rate", "100mbit,unlimited")
    else:
        # Links need root; what `step` measured serves for a link's file.
        content = json.loads(files["step"].read_text())
        records = [
            {**r, "id": f"{rate}/{r['id']}", "rate": rate, "bits": bits}
            for rate, bits in (("100mbit", 1e8), ("unlimited", 1e15))
            for r in content["records"]
        ]
        files["link"].write_text(json.dumps({**content, "benchmark": "link", "records": records}))
    files["traffic"].write_bytes((ROOT / "benchmarks/traffic.json").read_bytes())
    return list(files.values())
