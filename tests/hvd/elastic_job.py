"""A training script under `horovodrun --host-discovery-script`; writes what happens to the file $GRACE_TEST_LOG, one record a line."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

import grace_dl as grace
import grace_dl.torch

BATCHES = 40
"""A start on two ranks trains to the end only once there were three; then so many batches follow."""

hvd.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05),
    named_parameters=model.named_parameters(),
    # After a restart the schedule begins anew: ranks that stay carry what they have not sent, and a new one has nothing.
    grace=grace.schedule((0, grace.none()), (4, grace.topk(0.05))),
)


def log(event: str, **more: Any) -> None:
    owed = [optimizer.grace.session.residual(name) for name, _ in model.named_parameters()]
    record = {
        "event": event,
        "at": time.time(),
        "process": os.getpid(),
        "host": os.environ["HOROVOD_HOSTNAME"],
        "rank": hvd.rank(),
        "size": hvd.size(),
        "owed": sum(float(part.double().sum()) for part in owed if part is not None),
        **more,
    }
    with open(os.environ["GRACE_TEST_LOG"], "a") as file:
        file.write(json.dumps(record) + "\n")


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: Any) -> None:
    log("start", batch=state.batch)
    if state.largest == 3 and hvd.size() == 2:
        state.last = state.batch + BATCHES
    state.largest = max(state.largest, hvd.size())
    teacher = torch.randn(20, 10, generator=torch.Generator().manual_seed(7))
    while state.last is None or state.batch < state.last:
        chance = torch.Generator().manual_seed(10 * state.batch + hvd.rank())
        x = torch.randn(32, 20, generator=chance)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
        loss.backward()
        optimizer.step()
        state.batch += 1
        time.sleep(0.02)
        if state.batch % 5 == 0:
            log("saved", batch=state.batch, loss=loss.item())
            state.commit()
    log("end", batch=state.batch, weights=[p.double().sum().item() for p in model.parameters()])


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0, largest=0, last=None))
