"""A training script for `accelerate launch`; writes what each rank ends with to the folder it is given.

Usage: accelerate_script.py FOLDER [METHOD STEPS]
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator

from grace_dl.integrations.accelerate import attach


def main(folder: str, method: str = "topk:0.01", steps: str = "3") -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    handle = attach(accelerator, model, method)
    rank = accelerator.process_index
    for step in range(int(steps)):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    stats = handle.stats()
    found = {"steps": stats.steps, "sent": stats.leaving_bytes, "dense": stats.dense_bytes}
    torch.save(
        {"weight": net.weight.detach(), **found}, f"{folder}/rank{rank}-of-{accelerator.num_processes}.pt"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
