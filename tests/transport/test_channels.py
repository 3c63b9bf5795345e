"""Handles on one process group: nothing is shared, nothing leaks, and ranks that differ are told before they connect."""

from __future__ import annotations

import datetime
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from grace_dl.errors import LayoutError, PeerError
from grace_dl.transport.torch_dist import TorchTransport
from launch import free_port


def network(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32))


def attached(target: str, text: str, width: int = 64) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = network(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if target == "ddp":
        model = DistributedDataParallel(model)
        return model, optimizer, grace.attach(model, text)
    return model, optimizer, grace.attach(optimizer, text, named_parameters=model.named_parameters())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, width: int = 64) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, width)).square().mean().backward()
    optimizer.step()


def identical(model: nn.Module) -> bool:
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    return all(torch.equal(flat, other) for other in everyone)


# Ranks that differ ------------------------------------------------------------------------------------------


def different(rank: int, world: int, target: str, texts: tuple[str, str]) -> None:
    with pytest.raises(LayoutError, match="disagree") as caught:
        attached(target, texts[rank == 1])
    assert all(text in str(caught.value) for text in texts)
    model, optimizer, _ = attached(target, texts[0])
    step(model, optimizer)
    assert identical(model)


@pytest.mark.parametrize("target", ["ddp", "optimizer"])
@pytest.mark.parametrize(
    "texts",
    [("topk:0.1", "int8"), ("topk:0.1", "powersgd:2"), ("powersgd:2", "acpsgd:2")],
    ids=" ".join,
)
def test_different_methods_are_refused_at_attach(launch: Any, target: str, texts: tuple[str, str]) -> None:
    launch(different, 3, target, texts, timeout=30)


def meet(rank: int, world: int, name: str) -> None:
    """A barrier that waits for slow imports longer than the process group would."""
    store = c10d._get_default_store()
    store.set(f"{name}{rank}", "")
    store.wait([f"{name}{other}" for other in range(world)], datetime.timedelta(seconds=40))


def lone(rank: int, world: int, text: str) -> None:
    torch.optim.SGD(network().parameters(), lr=0.1)
    grace.attach  # noqa: B018
    meet(rank, world, "imported")
    if rank == 1:
        started = time.monotonic()
        with pytest.raises(PeerError, match=r"rank 0 did not come .* in 3 s"):
            attached("optimizer", text)
        assert time.monotonic() - started < 10
    meet(rank, world, "tried")
    model, optimizer, _ = attached("optimizer", text)
    step(model, optimizer)
    assert identical(model)


@pytest.mark.parametrize("text", ["topk:0.1", "powersgd:2"])
def test_attach_on_one_rank_ends_with_the_timeout(launch: Any, text: str) -> None:
    launch(lone, 2, text, group_timeout=3)


def uneven(rank: int, world: int) -> str:
    """Rank 0 is a member of two groups, the others of one; torch derives names of groups from their number."""
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 2])]
    if rank == 2:
        return "no member"
    torch.manual_seed(rank)
    topk = grace.manual(grace.topk(0.5), transport=TorchTransport(pairs[0]))
    topk.step(torch.randn(8), "w")
    try:
        grace.manual(grace.powersgd(2), transport=TorchTransport(pairs[0]))
    except LayoutError as error:
        return str(error)
    return "no error"


def test_ranks_with_different_numbers_of_groups(launch: Any) -> None:
    *members, other = launch(uneven, 3, timeout=30)
    assert other == "no member"
    assert all("process groups, of which ranks need equally many" in answer for answer in members), members


def some_in_other_groups(rank: int, world: int) -> None:
    dist.new_group([0, 1])
    model, optimizer, _ = attached("ddp", "powersgd:2")
    step(model, optimizer)
    assert identical(model)


def test_ranks_may_belong_to_different_groups(launch: Any) -> None:
    launch(some_in_other_groups, 3, timeout=30)


# Several handles --------------------------------------------------------------------------------------------


def branches(rank: int, world: int, text: str) -> None:
    """Two optimizers; rank 1 leaves out the second model, so that it sends its zeros later than the others."""
    (a, oa, _), (b, ob, _) = attached("optimizer", text), attached("optimizer", text, width=32)
    torch.manual_seed(rank)
    for number in range(4):
        oa.zero_grad()
        ob.zero_grad()
        y = a(torch.randn(4, 64))
        loss = y.square().mean()
        if number == 0 or rank != 1:
            loss = loss + b(y).square().mean()
        loss.backward()
        oa.step()
        ob.step()
    assert identical(a) and identical(b)


@pytest.mark.parametrize("text", ["topk:0.1,dense_below=0", "none", "powersgd:2", "threshold:0.01"])
def test_two_optimizers_whose_ranks_take_different_branches(launch: Any, text: str) -> None:
    launch(branches, 2, text, timeout=40, group_timeout=20)


def threads(rank: int, world: int) -> None:
    """Two threads, each with its own handle: results are those of its own tensors."""
    handles = [grace.manual("none"), grace.manual("int8:dense_below=0")]
    wrong: list[Any] = []

    def work(place: int) -> None:
        for number in range(100):
            value = float(1000 * place + number)
            try:
                result = handles[place].step(torch.full((64,), value + rank), "w")
            except Exception as error:
                wrong.append(error)
                return
            if not torch.allclose(result, torch.full((64,), value + 0.5), rtol=0.02, atol=0.5):
                wrong.append((place, number, result))

    running = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in running[:: 1 if rank else -1]:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong, wrong[:3]


def test_two_threads_with_two_handles(launch: Any) -> None:
    launch(threads, 2, timeout=60, group_timeout=30)


# Nothing leaks ----------------------------------------------------------------------------------------------


def held() -> tuple[int, int, int, int]:
    """Threads, descriptors, process groups and keys in the store."""
    gc.collect()
    dist.barrier()
    own = (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), len(c10d._world.pg_names))
    keys = c10d._get_default_store().num_keys()
    dist.barrier()
    return (*own, keys)


def repeated(rank: int, world: int, target: str, how: str) -> None:
    gc.disable()  # ranks collect at different times
    found = []
    for number in range(8):
        model, optimizer, handle = attached(target, "powersgd:2")
        step(model, optimizer)
        if how == "closed" or (how == "mixed" and (number + rank) % 2):
            handle.close()
        del model, optimizer, handle
        if rank == 1 and number % 3 == 0:
            gc.collect()
        if number in (1, 7):
            found.append(held())
    gc.enable()
    assert found[1] <= found[0], found
    assert all(after <= before for before, after in zip(*found)), found


@pytest.mark.parametrize("how", ["closed", "dropped", "mixed"])
@pytest.mark.parametrize("target", ["ddp", "optimizer"])
def test_attaching_again_and_again_leaks_nothing(launch: Any, target: str, how: str) -> None:
    launch(repeated, 2, target, how, timeout=40)


def stages(rank: int, world: int) -> None:
    """Every stage of a schedule, and every change of the trained layers, makes ranks compare layouts again."""
    schedule = "; ".join(f"{3 * n}=topk:{0.01 * (20 - n):g}" for n in range(12))
    model, optimizer, _ = attached("optimizer", f"schedule({schedule})")
    keys = []
    for number in range(36):
        next(iter(model.parameters())).requires_grad_(number % 2 == 0)
        step(model, optimizer)
        if number in (3, 35):
            keys.append(held()[3])
    assert keys[1] == keys[0], keys


def test_keys_do_not_grow_with_stages_and_layouts(launch: Any) -> None:
    launch(stages, 2, timeout=40)


def restarted(rank: int, world: int, store: str) -> None:
    for number in range(3):
        dist.init_process_group("gloo", init_method=f"file://{store}{number}", rank=rank, world_size=world)
        model, optimizer, _ = attached("ddp", "powersgd:2")
        handle = grace.manual("topk:0.1")
        step(model, optimizer)
        assert identical(model)
        dist.barrier()
        dist.destroy_process_group()
        with pytest.raises(PeerError, match="has been destroyed"):
            handle.step(torch.ones(8), "w")


def test_a_process_group_that_is_made_anew(launch: Any, tmp_path: Any) -> None:
    launch(restarted, 2, str(tmp_path / "store"), init=False, timeout=40)


def connections(port: int) -> int:
    """The open connections to a port of this machine, of all its processes."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()
    ]
    return sum(line[2].endswith(f":{port:04X}") and line[3] == "01" for line in lines)


def connected(rank: int, world: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model, optimizer, _ = attached("ddp", "none")
    step(model, optimizer)
    dist.barrier()
    before = connections(port)
    dist.barrier()
    handles = [grace.manual(text) for text in ("topk:0.1", "powersgd:2", "int8")]
    for handle in handles:
        handle.step(torch.randn(64, 64), "w")
    assert before > 0 and connections(port) == before
    dist.barrier()
    dist.destroy_process_group()


def test_handles_open_no_connections_to_the_store(launch: Any) -> None:
    """torch looks up host names for each: with 64 ranks at once that took seconds."""
    launch(connected, 2, free_port(), init=False, timeout=40)


def gloo_threads() -> set[str]:
    threads = Path("/proc/self/task").glob("*")
    return {path.name for path in threads if "gloo" in (path / "comm").read_text()}


def outlived(rank: int, world: int, store: str) -> None:
    """A group that something still refers to keeps its threads, and Gloo then aborts at exit."""
    others = gloo_threads()  # of groups that earlier tests left in this process
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    handles = [grace.manual(text) for text in ("topk:0.1", "powersgd:2")]
    for handle in handles:
        handle.step(torch.randn(64, 64), "w")
    started = gloo_threads() - others
    assert started
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    assert not started & gloo_threads()
    del handles


def test_handles_do_not_keep_a_destroyed_group_alive(launch: Any, tmp_path: Any) -> None:
    launch(outlived, 2, str(tmp_path / "store"), init=False, timeout=60)
