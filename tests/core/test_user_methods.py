"""A user's own compressor and memory: registered, or as objects."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import torch

import grace_dl as grace
from contract.cases import bits_equal, gradients, owed
from grace_dl import Compressor, Memory, catalog, registry, simulated
from grace_dl.compressor.codec import Codec
from grace_dl.errors import ConfigError, GraceError
from grace_dl.memory.residual import ResidualMemory
from values import not_none, total


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
    handle = make(transport)
    grads = gradients(size, count)[transport.rank]
    return [handle.step(g, "w") for g in grads], handle


def make_plain(transport):
    return grace.manual(grace.custom(Largest()), transport=transport)


def make_own_memory(transport):
    return grace.manual(grace.custom(Largest(60), Running(), "broadcast"), transport=transport)


def on_processes(rank, world):
    from grace_dl.transport.torch_dist import TorchTransport

    return [steps(TorchTransport(), make, world)[0] for make in (make_plain, make_own_memory)]


@pytest.mark.parametrize("size", [2, 3])
def test_two_methods_are_enough(launch, size):
    """The same on real processes as in simulation, and on every rank; nothing is lost."""
    answers = launch(on_processes, size)
    for place, make in enumerate((make_plain, make_own_memory)):
        world = simulated(size, timeout=10)
        found = world.run(partial(steps, make=make, size=size))
        for rank in range(size):
            for real, model, zero in zip(answers[rank][place], found[rank][0], found[0][0]):
                assert bits_equal(real, model)
                assert bits_equal(model, zero)
        given = total(g for of_rank in gradients(size, 4) for g in of_rank) / size
        got = total(found[0][0])
        if make is make_plain:
            left = total(not_none(owed(handle, "w")).view_as(given) for _, handle in found) / size
        else:
            left = total(handle.session.communicator_of("w").memory.left["w"] for _, handle in found) / size
        assert torch.allclose(got + left, given, atol=1e-5)


@pytest.mark.parametrize("memory", [ResidualMemory, None])
@pytest.mark.parametrize("way", ["allgather", "broadcast"])
def test_a_payload_that_is_the_input(way, memory):
    world = simulated(2, timeout=10)
    method = grace.custom(Identity(), memory() if memory else None, way)
    handles = [grace.manual(method, transport=t) for t in world]
    grads = gradients(2, 3)
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])
    for number, result in enumerate(results[0]):
        assert torch.allclose(result, (grads[0][number] + grads[1][number]) / 2)


@pytest.mark.parametrize("way", ["allgather", "broadcast", "allreduce"])
@pytest.mark.parametrize("memory", [ResidualMemory, None])
def test_a_spec_without_writing_into_frames(way, memory):
    world = simulated(3, timeout=10)
    method = grace.custom(Halves(), memory() if memory else None, way)
    handles = [grace.manual(method, transport=t) for t in world]
    grads = gradients(3, 2)
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])
    for number, result in enumerate(results[0]):
        assert torch.allclose(result, total(g[number] for g in grads) / 3, atol=1e-6)


def test_a_spec_that_is_not_kept_is_an_error():
    class Liar(Halves):
        def spec(self, numel, dtype):
            return ((torch.float64, numel + 1),)

    with pytest.raises(ConfigError, match=r"Liar.*spec"):
        grace.manual(grace.custom(Liar())).step(torch.ones(10), "w")


@pytest.mark.parametrize(
    "method, expected",
    [(Median, lambda stack: stack.median(dim=0).values), (Summing, lambda stack: stack.sum(0))],
)
def test_aggregate_and_average_of_the_original(method, expected):
    world = simulated(3, timeout=10)
    grads = gradients(3, 1)
    handles = [grace.manual(grace.custom(method()), transport=t) for t in world]
    results = world.run(lambda t: handles[t.rank].step(grads[t.rank][0], "w"))
    assert torch.allclose(results[0], expected(torch.stack([g[0] for g in grads])))
    assert bits_equal(results[0], results[2])


def test_send_and_receive():
    """The two halves of a step, for loops that compute in between."""
    world = simulated(2, timeout=10)
    handles = [make_plain(t) for t in world]
    grads = gradients(2, 1)

    def work(t):
        session = handles[t.rank].session
        return session.receive(*session.send(grads[t.rank][0], "w"))

    a, b = world.run(work)
    assert bits_equal(a, b)


@pytest.fixture
def largest():
    """A registered method, taken back afterwards."""
    grace.register("largest", reference="here", bits="few")(Largest)
    yield "largest"
    registry.unregister("largest")


def test_registering(largest):
    info = catalog.info("largest")
    make = getattr(grace, largest)
    assert info.memories == ("residual", "none", "ef21")
    assert info.summary == "Two methods, nothing else: the k largest elements, with the indices as they are."
    assert "largest" in catalog.methods()
    result = grace.manual(make(3)).step(torch.arange(10.0), "w")
    assert (result != 0).sum() == 3
    with pytest.raises(ConfigError, match=r"'q'.* k,"):
        make(q=3)
    with pytest.raises(ConfigError, match="registered already"):
        grace.register("largest")(Identity)
    # A notebook's cell, run again, replaces its class.
    assert grace.register("largest")(Largest) is Largest


def test_a_name_that_is_no_identifier():
    with pytest.raises(ConfigError, match="my-method"):
        grace.register("my-method")(Identity)


def test_a_registered_method_is_a_value(largest):
    """Constructor, text form, partners, compositions: all that built-in methods have."""
    make = getattr(grace, largest)
    method = make(3)
    assert method == grace.parse("largest:3") == grace.parse("largest:k=3") == make(k=3)
    assert str(make(memory="none", seed=5)) == "largest:50,memory=none,seed=5"
    assert eval(repr(method), {"grace": grace}) == method
    assert make.__doc__.startswith("Two methods, nothing else")
    text = "by_parameter(*.bias=none; default=largest:3)"
    composed = grace.by_parameter({"*.bias": grace.none()}, default=method)
    assert grace.parse(text) == composed and str(composed) == text
    handle = grace.manual(composed)
    assert (handle.step(torch.arange(10.0) + 1, "a.bias") != 0).sum() == 10
    assert (handle.step(torch.arange(10.0) + 1, "a.weight") != 0).sum() == 3
    handle.switch(grace.schedule((0, method), (2, grace.none())))
    assert (handle.step(torch.arange(10.0) + 1, "a.weight") != 0).sum() == 3
    handle.step(torch.arange(10.0) + 1, "a.weight")
    assert owed(handle, "a.weight") is None


def test_unregistered_names_are_gone():
    with pytest.raises(AttributeError, match="largest"):
        grace.largest  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(ConfigError, match="unknown method 'largest'"):
        grace.parse("largest:3")


ALONE = """
import torch
import grace_dl as grace
from grace_dl import catalog
for name, info in catalog.methods().items():
    for way in catalog.communicators_of(info):
        handle = grace.manual(getattr(grace, name)(communicator=way))
        for _ in range(2):
            out = handle.step(torch.randn(40, 50), "w")
        assert out.shape == (40, 50) and out.isfinite().all(), (name, way)
print(len(catalog.methods()), "methods")
"""


def test_one_process_without_a_launcher():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{len(catalog.builtin_names())} methods"


def test_dgc_changes_its_ratio_while_it_runs():
    """Warm-up: frames follow when the number of elements that are sent changes between steps."""
    world = simulated(2, timeout=10)
    method = grace.dgc(0.01, warmup_stages=2, warmup_steps=2)
    handles = [grace.manual(method, transport=t) for t in world]
    grads = gradients(2, 6)
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])
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


@pytest.mark.parametrize("way", ["allgather", "broadcast", "alltoall"])
def test_decoders_get_the_key_of_the_encoder(way):
    world = simulated(3, timeout=10)
    handles = [grace.manual(grace.custom(Dithered(), communicator=way), transport=t) for t in world]
    grads = gradients(3, 3)
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])
    for number, result in enumerate(results[0]):
        assert torch.allclose(result, total(g[number] for g in grads) / 3, atol=1e-3)


def test_errors_have_one_base():
    assert issubclass(ConfigError, GraceError) and issubclass(ConfigError, ValueError)
