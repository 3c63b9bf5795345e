"""What the ranks of Horovod with PyTorch do."""

from __future__ import annotations

import time
import warnings

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops
from steps import CASES, NAME, Chosen, build, record, sequence
from torch import nn

from contract.training import NETWORK, network

ORIGINAL = hvd.DistributedOptimizer

import grace_dl.torch  # noqa: E402
from grace_dl import grace_from_params  # noqa: E402
from grace_dl.errors import ConfigError, LayoutError, PeerError, UnsupportedError  # noqa: E402
from grace_dl.transport import detect  # noqa: E402
from grace_dl.transport.horovod import HorovodTransport  # noqa: E402

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def leave() -> None:
    hvd.shutdown()


def collectives() -> dict:
    """Every verb for every dtype that travels."""
    t = HorovodTransport()
    found = {}
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
        self._before = {}

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


def contract() -> dict:
    """Every method with its partners, through DistributedOptimizer."""
    found = {}
    for case in CASES:
        grads = sequence(RANK, SIZE)
        model = Chosen(grads[0].shape)
        grace = build(case)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            grace=grace,
            named_parameters=model.named_parameters(),
        )
        results = []
        with Wire() as wire:
            for c in grads:
                optimizer.zero_grad()
                model(c).backward()
                results.append(model.layer.weight.grad.clone())
                optimizer.synchronize()
                assert torch.equal(results[-1].nan_to_num(7), model.layer.weight.grad.nan_to_num(7))
        found[str(case)] = {**record(grace, results), "wire": wire.bytes}
    return found


def train_all() -> dict:
    """Replicas after some steps of a real network, several buckets, one method after another."""
    found = {}
    names = {case.method: case for case in reversed(CASES)}
    for method, case in sorted(names.items()):
        generator = torch.Generator().manual_seed(50 + RANK)
        inputs = torch.randn(64, NETWORK[0], generator=generator)
        labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
        model = network()
        grace = build(case)
        rate = 0.002 if "sign" in method and method != "efsignsgd" else 0.1
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=rate),
            grace=grace,
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


TOPK = {"compressor": "topk", "compress_ratio": 0.05}
EXACT = {"compressor": "topk", "compress_ratio": 1.0, "dense_below": 0}


def _model(params, wrap=True, momentum=0.9, **options):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    if wrap:
        keyword = {} if params is None else {"grace": grace_from_params(params)}
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), **keyword, **options
        )
    return model, optimizer


def _batch(step=0):
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    x = torch.randn(32, NETWORK[0], generator=generator)
    return x, (x[:, 0] > 0).long()


def _train(model, optimizer, steps=4, passes=1, clip=False):
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            x, y = _batch(10 * step + part)
            nn.functional.cross_entropy(model(x), y).backward()
        if clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def options() -> dict:
    """Each of Horovod's options: plain Horovod beside compression in the limit of none."""
    found = {}
    for name, options, use in (
        ("average", {}, {}),
        ("sum", {"op": hvd.Sum}, {}),
        ("passes", {"backward_passes_per_step": 3}, {"passes": 3}),
        ("early", {"backward_passes_per_step": 3}, {"passes": 2}),
        ("clip", {}, {"clip": True}),
    ):
        found[name] = [_train(*_model(params, **options), **use) for params in (None, EXACT, TOPK)]
    return found


def refused() -> dict:
    found = {}
    for name, options in (
        ("adasum", {"op": hvd.Adasum}),
        ("min", {"op": hvd.Min}),
        ("compression", {"compression": hvd.Compression.fp16}),
        ("predivide", {"gradient_predivide_factor": 2.0}),
        ("groups", {"num_groups": 2}),
        ("passes", {"backward_passes_per_step": 0}),
    ):
        try:
            _model(TOPK, **options)
        except ConfigError as error:
            found[name] = str(error)
    model = network()
    for name, make in (
        ("no communicator", lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), grace="topk")),
        ("missing names", lambda: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1), grace=grace_from_params(TOPK),
            named_parameters=list(model.named_parameters())[:2])),
        ("world size", lambda: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1), grace=grace_from_params({**TOPK, "world_size": SIZE + 1}))),
    ):  # fmt: skip
        try:
            make()
        except ConfigError as error:
            found[name] = str(error)
    return found


def disable() -> dict:
    """Without our keyword, and without us at all, Horovod is what it was."""
    taught = hvd.DistributedOptimizer
    plain_beside_us = _train(*_model(None))
    is_taught = taught is not ORIGINAL and grace_dl.torch.enabled()
    kept = _model(TOPK)
    grace_dl.torch.disable()
    restored = hvd.DistributedOptimizer is ORIGINAL and mpi_ops.__name__ and not grace_dl.torch.enabled()
    from horovod.torch.optimizer import DistributedOptimizer as deep

    try:
        _model(TOPK)
        unknown = False
    except TypeError:
        unknown = True
    plain = _train(*_model(None))
    still = _train(*kept)
    enabled = grace_dl.torch.enable() and hvd.DistributedOptimizer is not ORIGINAL
    return {
        "taught": is_taught,
        "restored": bool(restored and deep is ORIGINAL),
        "unknown": unknown,
        "plain": (plain, plain_beside_us),
        "kept works": still,
        "enabled again": enabled,
    }


def usage() -> dict:
    """Broadcasts, positions of arguments, schedulers, closures, state."""
    torch.manual_seed(RANK)
    model = nn.Linear(40, 48)
    before = torch.optim.Adam(model.parameters(), lr=0.01 * (RANK + 1))
    scheduler = torch.optim.lr_scheduler.StepLR(before, 1, gamma=0.5)
    grace = grace_from_params(TOPK)
    optimizer = hvd.DistributedOptimizer(before, grace, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    start = torch.cat([p.detach().view(-1) for p in model.parameters()])
    rates = [optimizer.param_groups[0]["lr"]]
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        x, _ = _batch(step)
        model(x).square().mean().backward()
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler.step()
    rates.append(optimizer.param_groups[0]["lr"])

    def closure():
        optimizer.zero_grad()
        loss = model(_batch(9)[0]).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    end = torch.cat([p.detach().view(-1) for p in model.parameters()])
    saved, grace_state = optimizer.state_dict(), grace.state_dict()
    optimizer.load_state_dict(saved)
    again = grace_from_params(TOPK)
    again.load_state_dict(grace_state)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return {
        "start": start, "end": end, "rates": rates, "loss": float(loss), "class": type(optimizer).__name__,
        "isinstance": isinstance(optimizer, torch.optim.Adam), "stats": optimizer.stats().payload_bytes,
        "owed": again.residual("weight"),
    }  # fmt: skip


def uneven() -> dict:
    """Parameters that a rank does not use, and a rank that has no backward pass at all in a step."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(40, 40), nn.Linear(40, 40)

        def forward(self, x):
            return (self.a if RANK == 0 else self.b)(x)

    torch.manual_seed(0)
    model = Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), grace=grace_from_params(EXACT),
        named_parameters=model.named_parameters(),
    )  # fmt: skip
    for step in range(3):
        optimizer.zero_grad()
        if step != 1 or RANK == 0:
            model(_batch(step)[0]).square().mean().backward()
        optimizer.step()
    sparse = nn.Embedding(50, 40, sparse=True)
    messages = []
    for as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(sparse.parameters(), lr=0.1),
            grace=grace_from_params(TOPK),
            sparse_as_dense=as_dense,
        )
        sparse.weight.grad = None
        try:
            sparse(torch.tensor([RANK, 3])).sum().backward()
            optimizer.step()
            messages.append(bool(sparse.weight.grad.is_sparse))
        except UnsupportedError as error:
            messages.append(str(error))
            optimizer._grace_reducer.close()
    return {"parameters": torch.cat([p.detach().view(-1) for p in model.parameters()]), "sparse": messages}


def attached() -> dict:
    """grc.attach(optimizer): the same as the keyword, without it."""
    model, optimizer = _model(None, wrap=False)
    handle = grace_from_params(TOPK).attach(optimizer, named_parameters=model.named_parameters())
    attached = _train(model, optimizer)
    keyword = _train(*_model(TOPK))
    handle.switch(grace_from_params({"compressor": "qsgd"}))
    switched = _train(model, optimizer, 2)
    stats = handle.stats().steps
    model2, optimizer2 = _model(None, wrap=False)
    several = grace_from_params(EXACT).attach(
        optimizer2, named_parameters=model2.named_parameters(), passes=2
    )
    passes = _train(model2, optimizer2, passes=2)
    expected = _train(*_model(None, backward_passes_per_step=2), passes=2)
    several.detach()
    handle.detach()
    local = _train(model, optimizer, 1)
    return {
        "attached": attached, "keyword": keyword, "switched": switched, "steps": stats, "local": local,
        "passes": passes, "expected": expected,
    }  # fmt: skip


def scaler() -> dict:
    """A GradScaler with an overflow on one rank: all ranks skip that step, and state follows the scale."""
    model = network()
    grace = grace_from_params(TOPK)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), grace=grace, named_parameters=model.named_parameters()
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scales = []
    for step in range(3):
        optimizer.zero_grad()
        x, y = _batch(step)
        loss = nn.functional.cross_entropy(model(x), y)
        if step == 1 and RANK == SIZE - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {
        "parameters": torch.cat([p.detach().view(-1) for p in model.parameters()]),
        "scales": scales,
        "skipped": grace.stats.skipped,
    }


def disagreement() -> str:
    """Ranks with different settings are told so, and do not hang."""
    grace = grace_from_params({"compressor": "topk", "compress_ratio": 0.01 * (1 + (RANK == 0))})
    try:
        grace.step(torch.ones(5000), NAME)
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
