"""A compressor with two methods works with every memory; compressors are never changed from outside."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grace_dl import Compressor
from grace_dl.communicator.allgather import Allgather
from grace_dl.communicator.allreduce import Allreduce
from grace_dl.kernels import Source
from grace_dl.key import Key
from grace_dl.memory.base import Memory, NotFinite
from grace_dl.memory.dgc import DgcMemory
from grace_dl.memory.none import NoneMemory
from grace_dl.memory.residual import ResidualMemory
from grace_dl.memory.signum import SignumMemory
from grace_dl.methods.onebit import OneBitCompressor
from grace_dl.methods.randomk import RandomKCompressor
from grace_dl.methods.signum import SignumCompressor
from grace_dl.methods.topk import TopKCompressor
from grace_dl.transport.local import LocalTransport
from values import not_none


class Largest(Compressor):
    """The ten largest elements."""

    def compress(self, tensor, name):
        flat = tensor.reshape(-1)
        index = flat.abs().topk(10).indices
        return [flat[index], index], tensor.shape

    def decompress(self, payload, ctx):
        values, index = payload
        return torch.zeros(ctx.numel(), dtype=values.dtype).index_add_(0, index, values).view(ctx)


class Identity(Compressor):
    """Its payload is the tensor it was given."""

    def compress(self, tensor, name):
        return [tensor], None

    def decompress(self, payload, ctx):
        return payload[0]


class Failing(Largest):
    def compress(self, tensor, name):
        raise RuntimeError("no")


MEMORIES = {
    "none": NoneMemory,
    "residual": lambda: ResidualMemory(0.9, 1.1),
    "signum": lambda: SignumMemory(0.9),
    "dgc": lambda: DgcMemory(0.9),
}
each_memory = pytest.mark.parametrize("memory", MEMORIES)


def grad(seed: int) -> Tensor:
    return torch.randn(20, 30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def warm(name: str) -> Memory:
    memory = MEMORIES[name]()
    for step in range(3):
        memory.commit(memory.begin(grad(step), Key("w", step=step), Largest()))
    return memory


def expected(memory: Memory, g: Tensor) -> Tensor:
    """What the memory's formula says is encoded next."""
    state = memory.state.get("w", {})
    if isinstance(memory, ResidualMemory):
        return 0.9 * state["e"] + 1.1 * g
    if isinstance(memory, SignumMemory):
        return 0.9 * state["m"] + (1 - 0.9) * g
    if isinstance(memory, DgcMemory):
        return state["v"] + 0.9 * state["m"] + g
    return g


@each_memory
@pytest.mark.parametrize("kind", [Largest, Identity, TopKCompressor, OneBitCompressor])
def test_every_memory_encodes_what_its_formula_says(memory, kind):
    held, compressor, g = warm(memory), kind(), grad(7)
    wanted = expected(held, g)
    pending = held.begin(g, Key("w", step=3), compressor)
    payload, ctx = compressor.encode(wanted.contiguous(), Key("w", step=3))
    sent = compressor.decompress(pending.payload, pending.ctx)
    assert torch.allclose(sent.view_as(g), compressor.decompress(payload, ctx).view_as(g))
    held.commit(pending)
    if memory == "residual":
        assert torch.allclose(not_none(held.residual("w")) * 1.1 / 0.9, wanted - sent.view_as(g))
    if memory == "signum":
        assert torch.allclose(held.state["w"]["m"], wanted)
    if memory == "dgc":
        assert torch.allclose(held.state["w"]["v"], wanted - sent.view_as(g))
        assert bool((held.state["w"]["m"][sent.view_as(g) != 0] == 0).all())


@each_memory
@pytest.mark.parametrize("kind", [Largest, Identity, TopKCompressor])
def test_an_aborted_step_leaves_the_state(memory, kind):
    held = warm(memory)
    before = held.state_dict()
    held.abort(held.begin(grad(7), Key("w", step=3), kind()))
    for slot, tensor in before.get("w", {}).items():
        assert torch.allclose(held.state["w"][slot], tensor)


@each_memory
def test_a_compressor_that_fails_leaves_the_state(memory):
    held = warm(memory)
    before = held.state_dict()
    with pytest.raises(RuntimeError, match="no"):
        held.begin(grad(7), Key("w", step=3), Failing())
    for slot, tensor in before.get("w", {}).items():
        assert torch.allclose(held.state["w"][slot], tensor)


def test_dgc_tells_what_is_not_finite_for_any_compressor():
    held = warm("dgc")
    before, bad = held.state_dict(), grad(7)
    bad[3, 4] = math.nan
    with pytest.raises(NotFinite):
        held.begin(bad, Key("w", step=3), Largest())
    assert all(torch.equal(held.state["w"][slot], tensor) for slot, tensor in before["w"].items())


@pytest.mark.parametrize("kind", [Largest, TopKCompressor, OneBitCompressor, SignumCompressor])
@pytest.mark.parametrize("leave", ["input", "residual", "compensated"])
def test_encode_from_leaves_what_was_asked_for(kind, leave):
    compressor, x, g = kind(), grad(1), grad(2)
    given, v = x.clone(), 0.9 * x + 0.3 * g
    payload, _ = compressor.encode_from(Source(x, g, 0.9, 0.3, leave), Key("w"))
    wanted, other = compressor.encode(v.clone(), Key("w"))
    assert all(torch.equal(a, b) for a, b in zip(payload, wanted, strict=True))
    left = {"input": given, "compensated": v}.get(leave)
    if left is None:
        left = v - compressor.decompress(wanted, other).view_as(v)
    assert torch.allclose(x, left)


def test_randomk_takes_its_scaling_from_the_memory_without_being_changed():
    compressor, here = RandomKCompressor(0.1), LocalTransport()
    for memory, scaled in ((ResidualMemory(), False), (NoneMemory(), True)):
        used = Allreduce(compressor, memory, transport=here).compressor
        assert isinstance(used, RandomKCompressor) and used.scaled is scaled
    assert compressor.scaled is None
    decided = RandomKCompressor(0.1, scaled=True)
    assert Allgather(decided, ResidualMemory(), transport=here).compressor is decided


def test_how_payloads_travel_does_not_enter_any_draw():
    plain, travelling = Key("w", 1, 2, 3), Key("w", 1, 2, 3, workers=8, summed=True)
    assert plain.word("a") == travelling.word("a")
    assert plain.shared_word("a") == travelling.shared_word("a")
