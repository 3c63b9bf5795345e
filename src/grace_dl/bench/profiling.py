"""Profiles of benchmark workloads, measured in this process."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..plan.profile import Profile
from ..plan.recorder import WARM_UP, profile
from .workload import Workload


def profile_workload(workload: Workload, *, threads: int = 1, steps: int = 5) -> Profile:
    """Train a workload for a few steps on one worker and record it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = workload.build()
        batch = workload.batch(torch.Generator().manual_seed(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        recorder = profile(model, None, steps=steps)
        try:
            for _ in range(steps + WARM_UP):
                optimizer.zero_grad()
                model(*batch).backward()
                optimizer.step()
        finally:
            recorder.close()
    finally:
        torch.set_num_threads(before)
    assert recorder.profile is not None
    return replace(recorder.profile, model=str(workload))
