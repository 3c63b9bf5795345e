"""What the ranks of Horovod with PyTorch do with its optimizer: every option, what is refused, and how it is used."""

from __future__ import annotations

import warnings
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops
from torch import nn

from contract.training import NETWORK, network
from values import not_none

ORIGINAL = hvd.DistributedOptimizer

import grace_dl as grace  # noqa: E402
import grace_dl.torch  # noqa: E402
from grace_dl.errors import ConfigError, UnsupportedError  # noqa: E402

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()

TOPK = grace.topk(0.05)
EXACT = grace.topk(1.0, dense_below=0)


def _model(method, wrap=True, momentum=0.9, **options) -> tuple[nn.Module, Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    if wrap:
        keyword = {} if method is None else {"grace": method}
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


def options() -> dict[str, Any]:
    """Each of Horovod's options: plain Horovod beside compression in the limit of none."""
    found = {}
    for name, options, use in (
        ("average", {}, {}),
        ("sum", {"op": hvd.Sum}, {}),
        ("passes", {"backward_passes_per_step": 3}, {"passes": 3}),
        ("early", {"backward_passes_per_step": 3}, {"passes": 2}),
        ("clip", {}, {"clip": True}),
    ):
        found[name] = [_train(*_model(method, **options), **use) for method in (None, EXACT, TOPK)]
    return found


def refused() -> dict[str, Any]:
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
        ("no method", lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), grace=3)),
        ("missing names", lambda: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1), grace=TOPK,
            named_parameters=list(model.named_parameters())[:2])),
    ):  # fmt: skip
        try:
            make()
        except ConfigError as error:
            found[name] = str(error)
    return found


def disable() -> dict[str, Any]:
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


def usage() -> dict[str, Any]:
    """Broadcasts, positions of arguments, schedulers, closures, state."""
    torch.manual_seed(RANK)
    model = nn.Linear(40, 48)
    before = torch.optim.Adam(model.parameters(), lr=0.01 * (RANK + 1))
    scheduler = torch.optim.lr_scheduler.StepLR(before, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(before, TOPK, named_parameters=model.named_parameters())
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
    saved, grace_state = optimizer.state_dict(), optimizer.grace.state_dict()
    optimizer.load_state_dict(saved)
    again = grace.manual(TOPK)
    again.load_state_dict(grace_state)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return {
        "start": start, "end": end, "rates": rates, "loss": float(loss), "class": type(optimizer).__name__,
        "isinstance": isinstance(optimizer, torch.optim.Adam), "stats": optimizer.grace.stats().payload_bytes,
        "owed": again.session.residual("weight"),
    }  # fmt: skip


def uneven() -> dict[str, Any]:
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
        torch.optim.SGD(model.parameters(), lr=0.1), grace=EXACT,
        named_parameters=model.named_parameters(),
    )  # fmt: skip
    for step in range(3):
        optimizer.zero_grad()
        if step != 1 or RANK == 0:
            model(_batch(step)[0]).square().mean().backward()
        optimizer.step()
    sparse = nn.Embedding(50, 40, sparse=True)
    messages: list[bool | str] = []
    for as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(sparse.parameters(), lr=0.1),
            grace=TOPK,
            sparse_as_dense=as_dense,
        )
        sparse.weight.grad = None
        try:
            sparse(torch.tensor([RANK, 3])).sum().backward()
            optimizer.step()
            messages.append(not_none(sparse.weight.grad).is_sparse)
        except UnsupportedError as error:
            messages.append(str(error))
            optimizer.grace.close()
    return {"parameters": torch.cat([p.detach().view(-1) for p in model.parameters()]), "sparse": messages}


def attached() -> dict[str, Any]:
    """grace.attach(optimizer, method): the same as the keyword, without it."""
    model, optimizer = _model(None, wrap=False)
    handle = grace.attach(optimizer, TOPK, named_parameters=model.named_parameters())
    attached = _train(model, optimizer)
    keyword = _train(*_model(TOPK))
    handle.switch(grace.qsgd())
    switched = _train(model, optimizer, 2)
    stats = handle.stats().steps
    model2, optimizer2 = _model(None, wrap=False)
    several = grace.attach(optimizer2, EXACT, named_parameters=model2.named_parameters(), backward_passes=2)
    passes = _train(model2, optimizer2, passes=2)
    expected = _train(*_model(None, backward_passes_per_step=2), passes=2)
    several.detach()
    handle.detach()
    plain = _train(model, optimizer, 1)
    handle.close()
    local = _train(model, optimizer, 1)
    return {
        "attached": attached, "keyword": keyword, "switched": switched, "steps": stats, "local": local,
        "passes": passes, "expected": expected, "plain": plain,
    }  # fmt: skip


def scaler() -> dict[str, Any]:
    """A GradScaler with an overflow on one rank: all ranks skip that step, and state follows the scale."""
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), grace=TOPK, named_parameters=model.named_parameters()
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
        "skipped": optimizer.grace.stats().skipped,
    }
