"""Launches of their own: process sets, a second initialisation, a rank that dies."""

from __future__ import annotations

import os
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

import grace_dl as grace
import grace_dl.torch
from contract.training import network
from grace_dl.errors import PeerError
from hvd.cluster import rendezvous

TOPK = grace.topk(0.05)


def leave() -> None:
    hvd.shutdown()


def _train(optimizer, model, steps, rank):
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + rank))
        nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        optimizer.step()
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def process_sets() -> dict[str, Any]:
    """Ranks 0 and 2 train together; rank 1 alone, without exchange."""
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    found = {}
    for method in (
        TOPK,
        grace.bf16(),
        grace.int8(communicator="alltoall"),
        grace.topk(0.3, communicator="broadcast"),
    ):
        model = network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), grace=method,
            named_parameters=model.named_parameters(), process_set=pair,
        )  # fmt: skip
        trained, handle = _train(optimizer, model, 4, hvd.rank()), optimizer.grace
        found[str(method)] = (trained, 0 if handle is None else handle.stats().steps)
    hvd.barrier()
    return found


def again() -> dict[str, Any]:
    """Horovod shut down and initialised again, as elastic training does after a change of ranks."""
    hvd.init()
    model = network()
    method = grace.int8(communicator="alltoall", memory="residual")
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), grace=method, named_parameters=model.named_parameters()
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
    _train(optimizer, model, 3, hvd.rank())
    state.commit()
    owed = {name: optimizer.grace.session.residual(name) for name, _ in model.named_parameters()}
    before = sum(o.abs().sum().item() for o in owed.values() if o is not None)
    # Addresses of the first time may still stand at the server that it was for.
    server, port = rendezvous(hvd.size()) if hvd.rank() == 0 else (None, None)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(hvd.broadcast_object(port, 0, name="port"))
    hvd.shutdown()
    hvd.init()
    state.restore()
    state.sync()
    parameters = _train(optimizer, model, 3, hvd.rank())
    assert not optimizer.grace.session.transport.stale
    if server is not None:
        server.stop()
    return {
        "parameters": parameters,
        "owed": before,
        "steps": sorted(set(optimizer.grace.state_dict()["steps"].values())),
    }


def death() -> str:
    """The last rank dies in the middle of training; the others are told and do not hang."""
    hvd.init()
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), grace=TOPK,
        named_parameters=model.named_parameters(),
    )  # fmt: skip
    _train(optimizer, model, 2, hvd.rank())
    if hvd.rank() == hvd.size() - 1:
        os._exit(7)
    try:
        _train(optimizer, model, 3, hvd.rank())
    except PeerError as error:
        assert isinstance(error, hvd.HorovodInternalError)
        return str(error)
    return ""
