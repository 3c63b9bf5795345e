"""Users' own compressors, memories and communicators, as they were written for the original GRACE."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import grace_dl as grace
from grace_dl import dist as original
from grace_dl import simulated
from grace_dl.compat.communicators import Allgather, Allreduce, Broadcast
from grace_dl.compat.compressors import (
    EFSignSGDCompressor,
    PowerSGDCompressor,
    RandomKCompressor,
    TopKCompressor,
)
from grace_dl.compat.memories import DgcMemory, EFSignSGDMemory, NoneMemory, ResidualMemory
from grace_dl.errors import ConfigError


class Largest(original.Compressor):
    """Payloads as people write them: a tuple of a matrix, a scalar and truth values; the context differs by rank."""

    def __init__(self, share: float = 0.25) -> None:
        super().__init__(tensors_size_are_same=False)
        self.share = share
        self.seen: dict[str, torch.Tensor] = {}

    def compress(self, tensor: torch.Tensor, name: str) -> tuple[Any, Any]:
        self.seen[name] = tensor
        flat = tensor.flatten()
        mask = flat.abs() >= flat.abs().quantile(1 - self.share)
        scale = flat.abs().max()
        rows = torch.stack([flat[mask] / scale, mask.nonzero().flatten().to(flat.dtype)], dim=1)
        return (rows, scale, mask), (tensor.shape, flat.numel())

    def decompress(self, tensors: Any, ctx: Any) -> torch.Tensor:
        (rows, scale, mask), (shape, numel) = tensors, ctx
        assert rows.shape[1:] == (2,) and scale.shape == () and mask.dtype == torch.bool
        out = torch.zeros(numel)
        out[rows[:, 1].long()] = rows[:, 0] * scale
        return out.view(shape)


class Half(original.Compressor):
    """Payloads that add up."""

    def compress(self, tensor: torch.Tensor, name: str) -> tuple[Any, Any]:
        return [tensor.double()], tensor.dtype

    def decompress(self, tensors: Any, ctx: Any) -> torch.Tensor:
        (tensor,) = tensors
        return tensor.to(ctx)


class Kept(original.Memory):
    """Without a call of the base's constructor."""

    def __init__(self) -> None:
        self.residuals: dict[str, torch.Tensor] = {}

    def compensate(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return tensor + self.residuals[name] if name in self.residuals else tensor

    def update(self, tensor: Any, name: str, compressor: Any, tensor_compressed: Any, ctx: Any) -> None:
        self.residuals[name] = tensor - compressor.decompress(tensor_compressed, ctx)


class Averaging(original.Communicator):
    """The interface of `torch.distributed`: one call that sends and receives."""

    def send_receive(self, tensors: Any, name: str, ctx: Any) -> torch.Tensor:
        decoded = self.compressor.decompress(tensors, ctx)
        gathered = [torch.empty_like(decoded) for _ in range(self.world_size or 1)]
        if dist.is_initialized():
            dist.all_gather(gathered, decoded)
        else:
            gathered = [decoded]
        total = self.compressor.aggregate(gathered)
        return total / self.world_size if self.compressor.average else total


class Halves(original.Communicator):
    """The interface of Horovod with PyTorch: two calls, and no world_size in the base."""

    def __init__(self, compressor: Any, memory: Any, world_size: int) -> None:
        super().__init__(compressor, memory)
        self.world_size = world_size

    def async_send(self, tensors: Any, name: str) -> Any:
        return [(dist.all_reduce(tensor, async_op=True), tensor) for tensor in tensors]

    def wait_receive(self, handles: Any, ctx: Any) -> torch.Tensor:
        received = []
        for work, tensor in handles:
            work.wait()
            received.append(tensor / self.world_size)
        return self.compressor.decompress(received, ctx)


class Counting(Allgather):
    """A built-in exchange with a change of its own."""

    calls = 0

    def send_receive(self, tensors: Any, name: str, ctx: Any) -> Any:
        self.calls += 1
        return 2 * super().send_receive(tensors, name, ctx)


def gradients(world: int, steps: int = 3) -> list[list[torch.Tensor]]:
    def drawn(rank: int) -> torch.Generator:
        return torch.Generator().manual_seed(rank)

    return [[torch.randn(6, 8, generator=g) for _ in range(steps)] for g in map(drawn, range(world))]


# Compressors and memories -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [Allgather, Broadcast])
@pytest.mark.parametrize("memory", [Kept, ResidualMemory, NoneMemory])
def test_a_compressor_of_ones_own(way: Any, memory: Any) -> None:
    """On three ranks: shapes and dtypes of payloads arrive, nothing is lost, replicas agree."""
    world = simulated(3)
    grads = gradients(3)
    grc = way(Largest(), memory())

    def work(transport: Any) -> tuple[list[torch.Tensor], Any, dict[str, Any]]:
        handle = grace.manual(grc, transport=transport)
        results = [handle.step(g, "w") for g in grads[transport.rank]]
        return results, handle.session.residual("w"), handle.state_dict()

    found = world.run(work)
    for results, _, _ in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results, found[0][0]))
    if memory is not NoneMemory:
        sent = sum(found[0][0])
        owed = sum(residual.view(6, 8) for _, residual, _ in found) / 3
        assert torch.allclose(
            sent + owed, torch.stack([torch.stack(g).sum(0) for g in grads]).mean(0), atol=1e-5
        )
        (saved,) = (memories["memory"] for memories in found[0][2]["parts"].values())
        assert set(saved["w"]) == {"residuals" if memory is Kept else "e"}
    assert grc.compressor.seen == {}, "a handle works on copies"


def test_state_of_a_memory_is_saved_and_moved() -> None:
    first = grace.manual(Allgather(Largest(), Kept()))
    for (g,) in gradients(4, 1):
        first.step(g, "w")
    second = grace.manual(Allgather(Largest(), Kept()))
    second.load_state_dict(first.state_dict())
    (g,) = gradients(5, 1)[4]
    assert torch.equal(first.step(g, "w"), second.step(g, "w"))
    owed = first.session.residual("w")
    assert owed is not None and owed.abs().sum() > 0
    first.switch(grace.none())
    assert torch.allclose(first.step(torch.zeros(6, 8), "w").view(-1), owed.view(-1), atol=1e-6)


class Exhausted(Kept):
    """Fails once it has loaded."""

    full = False

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if self.full:
            raise MemoryError("no more memory")


def test_a_memory_that_cannot_load_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = grace.manual(Allgather(Largest(), Exhausted()))
    states = []
    for g in gradients(1, 2)[0]:
        handle.step(g, "w")
        states.append(handle.state_dict())
    monkeypatch.setattr(Exhausted, "full", True)
    with pytest.raises(MemoryError):
        handle.load_state_dict(states[0])
    assert handle.state_dict()["digest"] == states[1]["digest"]


def test_a_sum_of_ones_own_payloads() -> None:
    grads = gradients(3, 1)
    work = lambda t: grace.manual(Allreduce(Half(), NoneMemory()), transport=t).step(grads[t.rank][0], "w")  # noqa: E731
    for result in simulated(3).run(work):
        assert torch.allclose(result, torch.stack([g[0] for g in grads]).mean(0), atol=1e-6)


@pytest.mark.parametrize("kind", [TopKCompressor, RandomKCompressor])
def test_a_subclass_that_changes_a_builtin_compressor(kind: Any) -> None:
    calls = []

    class Doubled(kind):  # type: ignore[misc]
        def compress(self, tensor: Any, name: str) -> Any:
            tensors, ctx = super().compress(tensor, name)
            calls.append(name)
            return tensors, ctx

        def decompress(self, tensors: Any, ctx: Any) -> Any:
            return 2 * super().decompress(tensors, ctx)

    handle = grace.manual(Allgather(Doubled(0.25), NoneMemory()))
    x = torch.randn(6, 8)
    results = [handle.step(x, "w") for _ in range(3)]
    assert calls == ["w"] * 3
    sent = results[0] != 0
    assert int(sent.sum()) == 12 and bool((results[0][sent].abs() >= 2 * x[sent].abs()).all())
    assert torch.equal(results[0], results[1]) == (kind is TopKCompressor), "every step draws anew"


# Communicators ------------------------------------------------------------------------------------------


def test_the_order_of_a_step() -> None:
    """compensate, compress, update, and only then the exchange."""
    order: list[str] = []

    class Told(Half):
        def compress(self, tensor: Any, name: str) -> Any:
            order.append("compress")
            return super().compress(tensor, name)

    class Listening(original.Memory):
        def compensate(self, tensor: Any, name: str) -> Any:
            order.append("compensate")
            return tensor

        def update(self, *arguments: Any) -> None:
            order.append("update")

    class Telling(original.Communicator):
        def send_receive(self, tensors: Any, ctx: Any) -> Any:
            order.append("send")
            return self.compressor.decompress(tensors, ctx)

    grc = Telling(Told(), Listening())
    x = torch.randn(5)
    assert torch.equal(grc.step(x, name="w"), x)
    assert order == ["compensate", "compress", "update", "send"]
    assert (grc.world_size, type(grc.memory)) == (None, Listening)


def loops(rank: int, world: int) -> list[list[torch.Tensor]]:
    """`step` and `send_step` in a loop, of user's and built-in compressors."""
    (mine, *_) = (grads for r, grads in enumerate(gradients(world)) if r == rank)
    results = []
    for grc in (
        Averaging(Half(), Kept(), world),
        Halves(Half(), NoneMemory(), world),
        Averaging(TopKCompressor(0.25), ResidualMemory(), world),
        Counting(Largest(), Kept(), world),
        Counting(RandomKCompressor(0.25), NoneMemory(), world),
        Averaging(EFSignSGDCompressor(0.1), EFSignSGDMemory(0.1), world),
    ):
        results.append([grc.step(g.clone(), "w") for g in mine])
        if isinstance(grc, Halves):
            handles, ctx = grc.send_step(mine[0].clone(), "w")
            results[-1].append(grc.receive_step(handles, ctx))
        if isinstance(grc, Counting):
            assert grc.calls == 3
    return results


def test_communicators_of_ones_own_in_a_loop(launch: Any) -> None:
    one, two = launch(loops, 2)
    for a, b in zip(one, two):
        assert all(torch.equal(x, y) for x, y in zip(a, b))
    means = [(a + b) / 2 for a, b in zip(*gradients(2))]
    plain, halves, topk, _, randomk, signs = one
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, means))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(halves, [*means, means[0]]))
    assert all(12 <= int((t != 0).sum()) <= 24 for t in topk)
    places = [tuple(t.flatten().nonzero().flatten().tolist()) for t in randomk]
    assert len(set(places)) == 3, "every step draws anew"
    assert torch.allclose(signs[0].abs().max(), torch.stack(gradients(2)[0]).abs().mean(), rtol=0.5)


def networks(rank: int, world: int) -> dict[str, Any]:
    """Attached to DDP and to an optimizer: gradients are the averages that plain DDP has."""
    found: dict[str, Any] = {}
    for kind in ("plain", "averaging", "halves", "optimizer"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
        forward: Any = model
        if kind != "optimizer":
            forward = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        grc: Any = (Halves if kind == "halves" else Averaging)(Half(), Kept(), world)
        if kind == "optimizer":
            handle = grace.attach(optimizer, grc, named_parameters=model.named_parameters())
        elif kind != "plain":
            handle = grace.attach(forward, grc)
        data = torch.Generator().manual_seed(rank)
        for _ in range(3):
            optimizer.zero_grad()
            forward(torch.randn(8, 12, generator=data)).square().mean().backward()
            optimizer.step()
        found[kind] = torch.cat([p.detach().flatten() for p in model.parameters()])
        if kind != "plain":
            stats = handle.stats()
            assert stats.steps == 3 and stats.payload_bytes == 2 * stats.dense_bytes
            handle.switch(grace.none())
    return found


def test_communicators_of_ones_own_attached(launch: Any) -> None:
    one, two = launch(networks, 2)
    for kind in one:
        assert torch.equal(one[kind], two[kind])
        assert torch.allclose(one[kind], one["plain"], atol=1e-6)


def test_what_cannot_work_is_rejected() -> None:
    class Nothing(original.Communicator):
        pass

    class Incomplete(original.Compressor):
        def compress(self, tensor: Any, name: str) -> Any: ...

    with pytest.raises(TypeError, match="send_receive"):
        Nothing(Half(), NoneMemory(), 1)
    with pytest.raises(TypeError, match="decompress"):
        Incomplete()  # type: ignore[abstract]
    with pytest.raises(ConfigError, match="use Allreduce"):
        Averaging(PowerSGDCompressor(), NoneMemory(), 1)
    with pytest.raises(ConfigError, match="DgcMemory works with the built-in communicators"):
        Averaging(TopKCompressor(0.3), DgcMemory(0.9, False, 1), 1)
    with pytest.raises(ConfigError, match="world_size=2"):
        grace.manual(Averaging(Half(), NoneMemory(), 2)).step(torch.ones(3), "w")
