"""Run by test_ray.py in a process of its own: a Ray cluster on loopback, two jobs, results as files.

Usage: python ray_cases.py FOLDER
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

import grace_dl as grace

STEPS = 6


def make() -> tuple[Any, Any, Any, Any]:
    from grace_dl.integrations.ray import attach

    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    model = ray.train.torch.prepare_model(net)
    return net, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), attach(model, "topk:0.05")


def step(model: Any, optimizer: Any, number: int, rank: int) -> None:
    optimizer.zero_grad()
    x = torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * number + rank))
    model(x).square().mean().backward()
    optimizer.step()


def loses_a_worker(config: dict[str, Any]) -> None:
    """Worker 1 is killed at step 3; the restarted job continues from the checkpoint of step 2."""
    rank = ray.train.get_context().get_world_rank()
    out = Path(config["out"])
    net, model, optimizer, handle = make()
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "model.pt")
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            grace.load(handle, folder)
            first = state["step"]
    for number in range(first, STEPS):
        if number == 3 and first == 0:
            ray.train.get_all_reported_checkpoints()  # waits until Ray has registered that of step 2
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, number, rank)
        if (number + 1) % 2 == 0:
            with tempfile.TemporaryDirectory() as folder:
                grace.save(handle, folder)
                if rank == 0:
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": number + 1}
                    torch.save(state, Path(folder) / "model.pt")
                ray.train.report({"step": number + 1}, checkpoint=Checkpoint.from_directory(folder))
    whole, reference, its_optimizer, its_handle = make()
    for number in range(STEPS):
        step(reference, its_optimizer, number, rank)
    stats = its_handle.stats()
    found = {
        "first": first,
        "resumed": [p.detach() for p in net.parameters()],
        "whole": [p.detach() for p in whole.parameters()],
        "leaving": stats.leaving_bytes,
        "dense": stats.dense_bytes,
    }
    torch.save(found, out / f"rank{rank}.pt")


def guide_with_one_worker(out: str) -> None:
    """The program of docs/ray.md, with one worker."""
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "ray.md").read_text()
    (code,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert "num_workers=2" in code
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code.replace("num_workers=2", "num_workers=1"), "docs/ray.md", "exec"), names)
    torch.save(dict(names["result"].metrics), f"{out}/guide.pt")


def two_workers(out: str) -> None:
    TorchTrainer(
        loses_a_worker,
        train_loop_config={"out": out},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=f"{out}/storage", failure_config=FailureConfig(max_failures=1)),
    ).fit()


def main(out: str) -> None:
    with tempfile.TemporaryDirectory(
        prefix="ray-", ignore_cleanup_errors=True
    ) as folder:  # sockets need a short path
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=True,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            two_workers(out)
            guide_with_one_worker(out)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
