"""DGC's memory: momentum correction, masking, clipping, and taking a step back."""

from __future__ import annotations

import math
import signal

import pytest
import torch

from grace_dl.communicator.transaction import BucketTransaction
from grace_dl.errors import ConfigError
from grace_dl.key import Key
from grace_dl.memory.base import NotFinite, Pending
from grace_dl.memory.dgc import DgcMemory
from grace_dl.methods.dgc import DgcCompressor
from grace_dl.methods.topk import TopKCompressor
from grace_dl.transport.local import LocalTransport
from values import not_none


def normal(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_step(memory, grad, step, compressor, commit=True):
    pending = memory.begin(grad, Key("w", step=step), compressor)
    sent = compressor.decompress(pending.payload, pending.ctx)
    memory.commit(pending) if commit else memory.abort(pending)
    return sent


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
def test_against_the_equations(nesterov, masking):
    memory = DgcMemory(momentum=0.9, nesterov=nesterov, momentum_masking=masking)
    compressor = DgcCompressor(0.1, sample_ratio=1.0)
    m = v = torch.zeros(20, 30, dtype=torch.float64)
    for step in range(5):
        g = normal((20, 30), step)
        sent = one_step(memory, g, step, compressor)
        if nesterov:
            m = 0.9 * (m + g)
            v = v + m + g
        else:
            m = 0.9 * m + g
            v = v + m
        mask = sent != 0
        assert int(mask.sum()) == 60
        assert torch.allclose(sent[mask], v[mask])
        v = torch.where(mask, 0.0, v)
        if masking:
            m = torch.where(mask, 0.0, m)
        assert torch.allclose(memory.state["w"]["m"], m)
        assert torch.allclose(memory.state["w"]["v"], v)
        assert torch.equal(not_none(memory.residual("w")), memory.state["w"]["v"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("clipping", [None, 0.5])
def test_abort_takes_a_step_back(momentum, nesterov, clipping):
    memory = DgcMemory(momentum, nesterov, gradient_clipping=clipping)
    compressor = DgcCompressor(0.1)
    for step in range(3):
        one_step(memory, normal((20, 30), step), step, compressor)
    before = memory.state_dict()
    one_step(memory, normal((20, 30), 7) * 100, 3, compressor, commit=False)
    after = memory.state["w"]
    assert torch.allclose(after["v"], before["w"]["v"], atol=1e-10)
    if momentum:
        assert torch.allclose(after["m"], before["w"]["m"], atol=1e-10)
    assert after["m"].isfinite().all()


def test_clipping_by_norm_shrinks_with_workers_and_leaves_the_gradient():
    memory = DgcMemory(momentum=0.0, gradient_clipping=1.0)
    g = normal((10, 10), 0)
    kept = g.clone()
    memory.begin(g, Key("w", workers=4), DgcCompressor(0.1))
    assert torch.equal(g, kept)
    assert float(memory.state["w"]["v"].norm()) == pytest.approx(1 / math.sqrt(4))


def test_clipping_by_a_function():
    memory = DgcMemory(momentum=0.0, gradient_clipping=lambda grad: grad.clamp_(-0.1, 0.1))
    g = normal((10, 10), 0)
    kept = g.clone()
    memory.begin(g, Key("w"), DgcCompressor(0.1))
    assert torch.equal(g, kept)
    assert torch.equal(memory.state["w"]["v"], g.clamp(-0.1, 0.1))
    assert isinstance(memory.settings()["gradient_clipping"], str)


@pytest.mark.parametrize("nesterov", [False, True])
def test_dense_parameters_get_momentum_after_the_average(nesterov):
    memory = DgcMemory(0.5, nesterov)
    ours, parameter = [], torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5, nesterov=nesterov)
    for step in range(4):
        mean = normal((4,), step).float()
        parameter.grad = mean.clone()
        before = parameter.detach().clone()
        optimizer.step()
        memory.after_dense_([mean], ["b"])
        ours.append((mean, before - parameter.detach()))
    for mean, update in ours:
        assert torch.allclose(mean, update, atol=1e-6)


def test_other_compressors_are_masked_too():
    memory = DgcMemory()
    one_step(memory, normal((5, 5), 0), 0, TopKCompressor(0.2))
    assert int((memory.state["w"]["m"] == 0).sum()) == 5


def test_state_is_saved_and_restored():
    memory, again = DgcMemory(), DgcMemory()
    compressor = DgcCompressor(0.1)
    one_step(memory, normal((20, 30), 0), 0, compressor)
    again.load_state_dict(memory.state_dict())
    a = one_step(memory, normal((20, 30), 1), 1, compressor)
    b = one_step(again, normal((20, 30), 1), 1, compressor)
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    "bad", [{"momentum": 1.0}, {"momentum": -0.1}, {"gradient_clipping": 0.0}, {"gradient_clipping": -1}]
)
def test_bad_settings(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        DgcMemory(**bad)


# A bucket at once -------------------------------------------------------------------------------------


def begun(memory, pieces, compressor):
    """What is begun, which must be all of it."""
    pendings = memory.begin_all(pieces, compressor)
    assert all(isinstance(pending, Pending) for pending in pendings)
    return pendings


def warm(**settings):
    """A memory that has made two steps with three parameters, and the pieces of the third."""
    memory, compressor = DgcMemory(**settings), DgcCompressor(0.1)
    for step in range(2):
        memory.commit_all(begun(memory, pieces(step), compressor))
    return memory, compressor, pieces(2)


def pieces(step):
    shapes = {"a": (30, 20), "b": (300, 300), "c": (5, 4)}
    return [(normal(shape, 7 * step), Key(name, step=step), None) for name, shape in shapes.items()]


def assert_state(memory, state, exactly=False):
    compare = torch.equal if exactly else torch.allclose
    for name, slots in state.items():
        for slot, tensor in slots.items():
            assert compare(memory.state[name][slot], tensor)


def test_a_bucket_at_once_is_its_pieces_one_by_one():
    together, compressor, grads = warm(gradient_clipping=0.5)
    alone = DgcMemory(gradient_clipping=0.5)
    alone.load_state_dict(together.state_dict())
    pendings = list(together.begin_all(grads, compressor))
    ones = [alone.begin(grad, key, compressor, out) for grad, key, out in grads]
    for pending, one in zip(pendings, ones):
        assert all(torch.equal(part, other) for part, other in zip(pending.payload, one.payload))
    together.commit_all(pendings)
    for one in ones:
        alone.commit(one)
    assert_state(together, alone.state, exactly=True)


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_one_piece_of_a_bucket_is_not_finite(clipping):
    memory, compressor, grads = warm(gradient_clipping=clipping)
    before = memory.state_dict()
    grads[1][0][3, 3] = math.nan
    first, second, third = memory.begin_all(grads, compressor)
    assert isinstance(second, NotFinite)
    assert_state(memory, {"b": before["b"]})
    memory.abort(first)
    memory.abort(third)
    assert_state(memory, before)


def test_one_piece_of_a_bucket_fails():
    def clip(grad):
        if grad.shape == (300, 300):
            raise ValueError("not this one")
        return grad

    memory, compressor, grads = warm()
    memory.gradient_clipping = clip
    before = memory.state_dict()
    first, second, third = memory.begin_all(grads, compressor)
    assert str(second) == "not this one"
    memory.abort(first)
    memory.abort(third)
    assert_state(memory, before)


class InterruptedDgc(DgcCompressor):
    """Interrupted after the first tensor of a bucket."""

    def encode_corrected_(self, *arguments):
        encoded, steps = super().encode_corrected_(*arguments)

        def until_the_second():
            yield next(steps)
            raise KeyboardInterrupt

        return encoded, until_the_second()


class InterruptedTopK(TopKCompressor):
    """The same, for a method that knows nothing of momentum."""

    def encode(self, tensor, key, out=None):
        if key.name == "b":
            raise KeyboardInterrupt
        return super().encode(tensor, key, out)


@pytest.mark.parametrize("compressor", [InterruptedDgc(0.1), InterruptedTopK(0.1)])
def test_a_bucket_that_is_interrupted_leaves_the_state(compressor):
    memory, _, grads = warm()
    before = memory.state_dict()
    with pytest.raises(KeyboardInterrupt):
        memory.begin_all(grads, compressor)
    assert_state(memory, before)


def test_an_interrupt_in_the_midst_of_a_pass_leaves_the_state():
    """Wherever it comes: what was taken by then is taken back."""
    memory, compressor = DgcMemory(), DgcCompressor(0.001)
    grads = [(torch.ones(1000, 1000), Key(str(number)), None) for number in range(12)]
    memory.commit_all(begun(memory, grads, compressor))
    before = memory.state_dict()

    def interrupt(*_):
        raise KeyboardInterrupt

    standing, interrupted = signal.signal(signal.SIGALRM, interrupt), 0
    try:
        for delay in (0.001, 0.004, 0.01):
            results = []
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                results = memory.begin_all(grads, compressor)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            memory.abort_all(results)
    finally:
        signal.signal(signal.SIGALRM, standing)
    assert interrupted
    assert_state(memory, before)


def test_an_interrupt_while_a_bucket_is_entered_leaves_the_state(monkeypatch):
    memory, compressor, grads = warm()
    before = memory.state_dict()
    transaction = BucketTransaction(LocalTransport())
    enter = transaction._enter

    def up_to_the_second(place, *arguments):
        if place == 1:
            raise KeyboardInterrupt
        return enter(place, *arguments)

    monkeypatch.setattr(transaction, "_enter", up_to_the_second)
    with pytest.raises(KeyboardInterrupt):
        transaction.begin_all([0, 1, 2], memory, compressor, grads, [True] * 3)
    transaction.abort()
    assert_state(memory, before)


def test_arguments_that_do_not_fit_change_nothing():
    memory, compressor, grads = warm()
    before = memory.state_dict()
    grads[2] = (grads[2][0], grads[2][1], compressor.allocate(7, torch.float64))
    results = list(memory.begin_all(grads, compressor))
    assert all(isinstance(result, Exception) for result in results)
    assert_state(memory, before, exactly=True)
