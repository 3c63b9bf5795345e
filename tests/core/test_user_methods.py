"""A user's own compressor and memory, and what scripts for the original GRACE do."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import grace_dl
from contract.cases import bits_equal, gradients
from grace_dl import Compressor, Memory, grace_from_params, registry, simulated
from grace_dl.communicator.allgather import Allgather
from grace_dl.communicator.allreduce import Allreduce
from grace_dl.communicator.alltoall import Alltoall
from grace_dl.communicator.broadcast import Broadcast
from grace_dl.compressor.codec import Codec
from grace_dl.compressor.topk import TopKCompressor
from grace_dl.errors import ConfigError, GraceError
from grace_dl.memory.residual import ResidualMemory


class Largest(Compressor):
    """Two methods, nothing else: the k largest elements, with the indices as they are."""

    def __init__(self, k=50):
        super().__init__()
        self.k = k

    def compress(self, tensor, name):
        flat = tensor.reshape(-1)
        _, index = flat.abs().topk(min(self.k, flat.numel()))
        return [flat[index], index], tensor.shape

    def decompress(self, payload, ctx):
        values, index = payload
        out = torch.zeros(ctx.numel(), dtype=values.dtype)
        return out.index_add_(0, index, values).view(ctx)


class Identity(Compressor):
    """Its payload is the very tensor it was given."""

    def compress(self, tensor, name):
        return [tensor], None

    def decompress(self, payload, ctx):
        return payload[0]


class Halves(Identity):
    """Says how large its payload is, and that payloads add up, but writes into no frame itself."""

    sums = True

    def spec(self, numel, dtype):
        return ((torch.float64, numel),)

    def compress(self, tensor, name):
        return [tensor.double() / 2], (tensor.shape, tensor.dtype)

    def decompress(self, payload, ctx):
        return (payload[0] * 2).view(ctx[0]).to(ctx[1])


class Median(Identity):
    """As the original GRACE let it: `aggregate` decides what many become, and no average follows."""

    def __init__(self):
        super().__init__(average=False)

    def aggregate(self, tensors):
        return torch.stack(tensors).median(dim=0).values


class Summing(Identity):
    def __init__(self):
        super().__init__(average=False, tensors_size_are_same=False)


class Running(Memory):
    """A memory of one's own: two methods and a dictionary."""

    def __init__(self):
        super().__init__()
        self.left = {}

    def compensate(self, tensor, name):
        return tensor + self.left.get(name, 0)

    def update(self, tensor, name, compressor, payload, ctx):
        self.left[name] = tensor - compressor.decompress(payload, ctx)

    def settings(self):
        return {}


def steps(transport, make, size, count=4):
    grace = make(transport)
    grads = gradients(size, count)[transport.rank]
    return [grace.step(g, "w") for g in grads], grace


def make_plain(transport):
    return Allgather(Largest(), ResidualMemory(), transport=transport)


def make_own_memory(transport):
    return Broadcast(Largest(60), Running(), transport=transport)


def on_processes(rank, world):
    from grace_dl.transport.torch_dist import TorchTransport

    return [steps(TorchTransport(), make, world)[0] for make in (make_plain, make_own_memory)]


@pytest.mark.parametrize("size", [2, 3])
def test_two_methods_are_enough(launch, size):
    """The same on real processes as in simulation, and on every rank; nothing is lost."""
    answers = launch(on_processes, size)
    for place, make in enumerate((make_plain, make_own_memory)):
        world = simulated(size, timeout=10)
        found = world.run(lambda t, make=make: steps(t, make, size))
        for rank in range(size):
            for real, model, zero in zip(answers[rank][place], found[rank][0], found[0][0]):
                assert bits_equal(real, model)
                assert bits_equal(model, zero)
        given = sum(g for of_rank in gradients(size, 4) for g in of_rank) / size
        got = sum(found[0][0])
        if make is make_plain:
            owed = sum(grace.residual("w").view_as(given) for _, grace in found) / size
        else:
            owed = sum(grace.memory.left["w"] for _, grace in found) / size
        assert torch.allclose(got + owed, given, atol=1e-5)


@pytest.mark.parametrize("memory", [ResidualMemory, None])
@pytest.mark.parametrize("kind", [Allgather, Broadcast])
def test_a_payload_that_is_the_input(kind, memory):
    world = simulated(2, timeout=10)
    graces = [kind(Identity(), memory() if memory else None, transport=t) for t in world]
    grads = gradients(2, 3)
    results = world.run(lambda t: [graces[t.rank].step(g, "w") for g in grads[t.rank]])
    for number, result in enumerate(results[0]):
        assert torch.allclose(result, (grads[0][number] + grads[1][number]) / 2)


@pytest.mark.parametrize("kind", [Allgather, Broadcast, Allreduce])
@pytest.mark.parametrize("memory", [ResidualMemory, None])
def test_a_spec_without_writing_into_frames(kind, memory):
    world = simulated(3, timeout=10)
    graces = [kind(Halves(), memory() if memory else None, transport=t) for t in world]
    grads = gradients(3, 2)
    results = world.run(lambda t: [graces[t.rank].step(g, "w") for g in grads[t.rank]])
    for number, result in enumerate(results[0]):
        assert torch.allclose(result, sum(g[number] for g in grads) / 3, atol=1e-6)


def test_a_spec_that_is_not_kept_is_an_error():
    class Liar(Halves):
        def spec(self, numel, dtype):
            return ((torch.float64, numel + 1),)

    with pytest.raises(ConfigError, match=r"Liar.*spec"):
        Allgather(Liar(), ResidualMemory()).step(torch.ones(10), "w")


def test_aggregate_and_average_of_the_original():
    world = simulated(3, timeout=10)
    grads = gradients(3, 1)
    stack = torch.stack([g[0] for g in grads])
    for method, expected in ((Median, stack.median(dim=0).values), (Summing, stack.sum(0))):
        graces = [Allgather(method(), ResidualMemory(), transport=t) for t in world]
        results = world.run(lambda t, graces=graces: graces[t.rank].step(grads[t.rank][0], "w"))
        assert torch.allclose(results[0], expected)
        assert bits_equal(results[0], results[2])


def test_send_and_receive():
    """The original's two halves of a step."""
    world = simulated(2, timeout=10)
    graces = [make_plain(t) for t in world]
    grads = gradients(2, 1)

    def work(t):
        handles = graces[t.rank].send_step(grads[t.rank][0], "w")
        return graces[t.rank].receive_step(*handles)

    a, b = world.run(work)
    assert bits_equal(a, b)


def test_registering_by_name():
    try:
        registry.register("largest", reference="here", bits="few")(Largest)
        record = grace_dl.method("largest")
        assert record.memories == ("residual", "none")
        assert "largest" in grace_dl.methods()
        grace = grace_from_params({"compressor": "largest", "k": 3})
        result = grace.step(torch.arange(10.0), "w")
        assert (result != 0).sum() == 3
        with pytest.raises(ConfigError, match=r"'q'.* k,"):
            grace_from_params({"compressor": "largest", "q": 3})
        with pytest.raises(ConfigError, match="registered already"):
            registry.register("largest")(Identity)
    finally:
        registry.unregister("largest")
    with pytest.raises(ConfigError):
        registry.unregister("topk")


# Import paths and lines of scripts ------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_the_original_import_paths(name):
    alias = importlib.import_module(f"grace_dl.dist.compressor.{name}")
    real = importlib.import_module(f"grace_dl.compressor.{name}")
    cls = registry.method(name).cls.__name__
    assert getattr(alias, cls) is getattr(real, cls)


@pytest.mark.parametrize("memory", list(registry._MEMORIES))
def test_the_original_import_paths_of_memories(memory):
    alias = importlib.import_module(f"grace_dl.dist.memory.{memory}")
    assert getattr(alias, registry.memory_class(memory).__name__) is registry.memory_class(memory)


@pytest.mark.parametrize("way", list(registry._COMMUNICATORS))
def test_the_original_import_paths_of_communicators(way):
    alias = importlib.import_module(f"grace_dl.dist.communicator.{way}")
    kind = registry.communicator_class(way)
    assert getattr(alias, kind.__name__) is kind


def test_lines_of_the_original_guide():
    from grace_dl.dist.communicator.allgather import Allgather as Alias
    from grace_dl.dist.compressor.topk import TopKCompressor as TopK
    from grace_dl.dist.helper import grace_from_params as helper
    from grace_dl.dist.memory.residual import ResidualMemory as Residual

    grc = Alias(TopK(0.3), Residual())
    assert isinstance(grc, Allgather)
    other = helper({"compressor": "topk", "memory": "residual", "communicator": "allgather"})
    x = torch.randn(4, 5)
    assert bits_equal(grc.step(x, "w"), other.step(x, "w"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("grace_dl.dist.compressor.nothing")


def test_world_size_is_optional_and_checked():
    x = torch.randn(4, 5)
    assert Allgather(TopKCompressor(0.3), ResidualMemory(), 1).step(x, "w").shape == x.shape
    assert grace_from_params({"compressor": "topk", "world_size": 1}).step(x, "w").shape == x.shape
    with pytest.raises(ConfigError, match=r"world_size=2.*1 ranks"):
        Allgather(TopKCompressor(0.3), ResidualMemory(), 2).step(x, "w")
    world = simulated(3)
    Allgather(TopKCompressor(0.3), ResidualMemory(), 3, transport=world[0])
    with pytest.raises(ConfigError, match="world_size=2"):
        Allgather(TopKCompressor(0.3), ResidualMemory(), 2, transport=world[0])


ALONE = """
import torch
from grace_dl import grace_from_params, methods
for name, record in methods().items():
    for way in record.communicators:
        grace = grace_from_params({"compressor": name, "communicator": way})
        for _ in range(2):
            out = grace.step(torch.randn(40, 50), "w")
        assert out.shape == (40, 50) and out.isfinite().all(), (name, way)
print(len(methods()), "methods")
"""


def test_one_process_without_a_launcher():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "24 methods"


def test_dgc_changes_its_ratio_while_it_runs():
    """Warm-up: frames follow when the number of elements that are sent changes between steps."""
    world = simulated(2, timeout=10)
    params = {"compressor": "dgc", "compress_ratio": 0.01, "warmup_epochs": 2, "warmup_steps": 2}
    graces = [grace_from_params(params, transport=t) for t in world]
    grads = gradients(2, 6)
    results = world.run(lambda t: [graces[t.rank].step(g, "w") for g in grads[t.rank]])
    sent = [int((r != 0).sum()) for r in results[0]]
    assert sent[0] > 2 * sent[2] > 4 * sent[4]
    for a, b in zip(*results):
        assert bits_equal(a, b)


class Dithered(Codec):
    """Adds a number that encoder and decoder draw from the key: right only where both have the same key."""

    elementwise = True

    def spec(self, numel, dtype):
        return ((dtype, numel),)

    @staticmethod
    def _number(key):
        return (key.shared_word() % 1000) / 10

    def _encode(self, x, key, out):
        payload = self.allocate(x.numel(), x.dtype) if out is None else out
        payload[0].copy_(x + self._number(key))
        return payload

    def accumulate_(self, out, payload, ctx):
        out.add_(payload[0].view_as(out) - self._number(ctx.key))


@pytest.mark.parametrize("kind", [Allgather, Broadcast, Alltoall])
def test_decoders_get_the_key_of_the_encoder(kind):
    world = simulated(3, timeout=10)
    graces = [kind(Dithered(), transport=t) for t in world]
    grads = gradients(3, 3)
    results = world.run(lambda t: [graces[t.rank].step(g, "w") for g in grads[t.rank]])
    for number, result in enumerate(results[0]):
        assert torch.allclose(result, sum(g[number] for g in grads) / 3, atol=1e-3)


def test_errors_have_one_base():
    assert issubclass(ConfigError, GraceError) and issubclass(ConfigError, ValueError)
