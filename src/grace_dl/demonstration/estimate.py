"""Step times on networks that cannot be made here, predicted by the cost model of `grace plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from ..algebra.text import parse
from ..bench.selection import DDP
from ..data import Images
from ..plan.cluster import Cluster
from ..plan.codec_timing import codec_costs
from ..plan.predict import Planner, parts_of
from ..plan.profile import Profile
from ..plan.recorder import WARM_UP, profile
from .plan import Result, Settings
from .train import batches, network_for

_STEPS = 5


def estimates(
    settings: Settings, images: Images, first: Sequence[Result], rates: Sequence[str]
) -> list[Result]:
    """The results of the first network, with the step times predicted for other link rates."""
    methods = {r.method: parse(r.method) for r in first if r.method != DDP}
    planner = Planner(_profile(settings, images), codec_costs(parts_of(methods.values())))
    found = []
    for rate in rates:
        cluster = Cluster.parse(f"{settings.workers}x1@{rate}")
        for known in first:
            seconds = planner.predict(methods.get(known.method), cluster).seconds
            result = replace(known, network=rate, timed=0, step_seconds=seconds)
            result.with_accuracy_of(known)
            found.append(result)
    return found


def _profile(settings: Settings, images: Images) -> Profile:
    """The demo's training step, measured in this process."""
    model, lossf = network_for(images), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    recorder = profile(model, None, steps=_STEPS)
    try:
        for x, y in batches(images, settings.batch_size, 0, settings.workers, _STEPS + WARM_UP):
            optimizer.zero_grad()
            lossf(model(x), y).backward()
            optimizer.step()
    finally:
        recorder.close()
    assert recorder.profile is not None
    return recorder.profile
