"""What the ranks of Horovod with PyTorch do."""

from __future__ import annotations

import time
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops
from torch import nn

import grace_dl as grace
from contract.training import NETWORK, network
from grace_dl.errors import LayoutError, PeerError
from grace_dl.transport import detect
from grace_dl.transport.horovod import HorovodTransport
from hvd.steps import CASES, NAME, Chosen, record, sequence
from hvd.torch_optimizer_cases import attached, disable, options, refused, scaler, uneven, usage
from values import not_none

RANK, SIZE = hvd.rank(), hvd.size()

__all__ = ["attached", "disable", "options", "refused", "scaler", "uneven", "usage"]


def leave() -> None:
    hvd.shutdown()


def collectives() -> dict[str, Any]:
    """Every verb for every dtype that travels."""
    t = HorovodTransport()
    found: dict[str, Any] = {}
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):
        x = (torch.arange(37) % 5 + RANK).to(dtype)
        t.allreduce(x).wait()
        assert x.tolist() == [SIZE * (i % 5) + sum(range(SIZE)) for i in range(37)], dtype
        out = torch.empty(SIZE * 5, dtype=dtype)
        t.allgather(out, torch.full((5,), RANK + 1, dtype=dtype)).wait()
        assert out.tolist() == [r + 1 for r in range(SIZE) for _ in range(5)], dtype
        y = torch.full((3,), RANK, dtype=dtype)
        t.broadcast(y, SIZE - 1).wait()
        assert y.tolist() == [SIZE - 1] * 3, dtype
        for unit in (1, 8):
            splits_in = [unit * (RANK + r + 1) for r in range(SIZE)]
            splits_out = [unit * (RANK + r + 1) for r in range(SIZE)]
            sent = torch.cat([torch.full((n,), 10 * RANK + r, dtype=dtype) for r, n in enumerate(splits_in)])
            came = torch.empty(sum(splits_out), dtype=dtype)
            t.alltoall(came, sent, splits_out, splits_in).wait()
            expected = [10 * r + RANK for r, n in enumerate(splits_out) for _ in range(n)]
            assert came.tolist() == expected, dtype
        found[str(dtype)] = True
    t.barrier().wait()
    assert isinstance(detect(), HorovodTransport)
    # Many in flight on two channels, more than names rotate over.
    handles, tensors = [], [torch.full((4,), float(i)) for i in range(20)]
    for i, x in enumerate(tensors):
        handles.append(t.allreduce(x, channel=i % 2))
    for handle in handles:
        handle.wait()
    assert all(x.tolist() == [SIZE * float(i)] * 4 for i, x in enumerate(tensors))
    # bfloat16 travels as bytes; its sum is taken in float32 and rounded once.
    parts = torch.randn(SIZE, 1000, generator=torch.Generator().manual_seed(3)).bfloat16()
    x = parts[RANK].clone()
    t.allreduce(x).wait()
    total = torch.zeros(1000)
    for part in parts:
        total += part.float()
    assert torch.equal(x, total.bfloat16())
    t.agree("the same")
    try:
        t.agree(f"rank {RANK}")
        found["disagreement"] = None
    except LayoutError as error:
        found["disagreement"] = str(error)
    return found


class Wire:
    """Counts the bytes that reach Horovod itself."""

    VERBS = ("allreduce_async_", "_allgather_async", "_alltoall_async", "broadcast_async_")

    def __init__(self) -> None:
        self.bytes = 0
        self._before: dict[str, Any] = {}

    def __enter__(self) -> Wire:
        for verb in self.VERBS:
            before = self._before[verb] = getattr(mpi_ops, verb)

            def counting(tensor, *arguments, before=before, **keywords):
                name = keywords.get("name", "") or next(a for a in arguments if isinstance(a, str))
                passive = before.__name__ == "broadcast_async_" and arguments[0] != RANK
                if ".agree." not in name and not passive:
                    self.bytes += tensor.nbytes
                return before(tensor, *arguments, **keywords)

            setattr(mpi_ops, verb, counting)
        return self

    def __exit__(self, *_) -> None:
        for verb, before in self._before.items():
            setattr(mpi_ops, verb, before)


def contract() -> dict[str, Any]:
    """Every method with its partners, through DistributedOptimizer."""
    found = {}
    for case in CASES:
        grads = sequence(RANK, SIZE)
        model = Chosen(grads[0].shape)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            grace=case.value(),
            named_parameters=model.named_parameters(),
        )
        results = []
        with Wire() as wire:
            for c in grads:
                optimizer.zero_grad()
                model(c).backward()
                results.append(not_none(model.layer.weight.grad).clone())
                optimizer.synchronize()
                assert torch.equal(results[-1].nan_to_num(7), not_none(model.layer.weight.grad).nan_to_num(7))
        found[str(case)] = {**record(optimizer.grace, results), "wire": wire.bytes}
    return found


def train_all() -> dict[str, Any]:
    """Replicas after some steps of a real network, several buckets, one method after another."""
    found = {}
    names = {case.method: case for case in reversed(CASES)}
    for method, case in sorted(names.items()):
        generator = torch.Generator().manual_seed(50 + RANK)
        inputs = torch.randn(64, NETWORK[0], generator=generator)
        labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
        model = network()
        rate = 0.002 if "sign" in method and method != "efsignsgd" else 0.1
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=rate),
            grace=case.value(),
            named_parameters=model.named_parameters(),
        )
        losses = []
        for _ in range(15):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found[method] = (torch.cat([p.detach().view(-1) for p in model.parameters()]), losses)
    return found


def disagreement() -> str:
    """Ranks with different settings are told so, and do not hang."""
    handle = grace.manual(grace.topk(0.01 * (1 + (RANK == 0))))
    try:
        handle.step(torch.ones(5000), NAME)
    except LayoutError as error:
        return str(error)
    return ""


def missing_rank() -> str:
    """A rank that does not come is waited for until the time limit."""
    t = HorovodTransport(timeout=2.0)
    x = torch.ones(3)
    started = time.monotonic()
    if RANK == 0:
        time.sleep(4)
        t.allreduce(x).wait()
        return ""
    handle = t.allreduce(x)
    try:
        handle.wait()
    except PeerError as error:
        message = f"{time.monotonic() - started:.1f} {error}"
    else:
        message = ""
    time.sleep(3)  # until rank 0 has come, so that nothing is in flight when the next case begins
    return message
