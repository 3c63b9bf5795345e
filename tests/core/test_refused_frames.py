"""A peer's broken frame: a step is given up whole on every rank, or its result is finite and the same on every rank."""

from __future__ import annotations

import random

import pytest
import torch

from contract.cases import CASES, Case, bits_equal, build, gradients
from contract.wire import Damaging
from grace_dl import simulated
from grace_dl.errors import GraceError
from grace_dl.handle import ManualHandle
from grace_dl.pipeline.bucket import Bucket, Segment

STEPS = 8
SIZES: dict[str, list[tuple[int, ...]]] = {"first": [(24, 40), (7,)], "second": [(40, 24)]}
SPECIAL = [
    bytes.fromhex(digits)
    for digits in ("0000c07f", "0000807f", "007c007c", "ffffffff", "ffffff7f", "00000080")
]
"""NaN and infinity as float32 and float16, and what breaks counts and codes."""


class Mutation:
    """Changes what arrives from the last rank, on all ranks alike, in every other step."""

    def __init__(self, case: Case, size: int) -> None:
        self._case, self._size = case, size
        self.step = 0

    def __call__(self, verb: str, call: int, received: torch.Tensor) -> None:
        if self.step % 2 == 0 or received.numel() == 0:
            return
        data = received.view(-1).view(torch.uint8)
        part = data[data.numel() // self._size * (self._size - 1) :] if verb == "allgather" else data
        # Not by `call`: the order of later rounds depends on timing.
        chance = random.Random(f"{self._case} {self.step} {verb} {received.numel()}")
        for _ in range(chance.choice([1, 1, 3])):
            if chance.random() < 0.5 and part.numel() >= 4:
                at = 4 * chance.randrange(part.numel() // 4)
                part[at : at + 4] = torch.tensor(list(chance.choice(SPECIAL)), dtype=torch.uint8)
            else:
                part[chance.randrange(part.numel())] ^= 1 << chance.randrange(8)


def buckets(grads: dict[str, list[torch.Tensor]]) -> list[Bucket]:
    found = []
    for key, tensors in grads.items():
        flats = [tensor.view(-1) for tensor in tensors]
        segments = [Segment(f"{key}.{i}", f, t) for i, (f, t) in enumerate(zip(flats, tensors))]
        found.append(Bucket(key, segments))
    return found


def state_of(handle: ManualHandle) -> dict[str, torch.Tensor]:
    """All slots, with what a step has deferred to the next one settled."""
    return {
        f"{label}/{name}/{slot}": tensor.clone()
        for label, memory in handle.session.memories().items()
        for name, of_name in memory.state.items()
        for slot, tensor in memory.settled(of_name).items()
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_refused_frame_changes_nothing(case):
    size = 2
    world = simulated(size, timeout=20)
    mutations = [Mutation(case, size) for _ in world]
    handles = [build(case, Damaging(t, m), dense_below=10) for t, m in zip(world, mutations)]
    values = {
        key: [gradients(size, STEPS, shape, seed=place) for place, shape in enumerate(shapes)]
        for key, shapes in SIZES.items()
    }

    def step(rank, number):
        """The outcome, and whether memories, step counters and gradients are as before."""
        handle = handles[rank]
        grads = {key: [v[rank][number].clone() for v in of_key] for key, of_key in values.items()}
        before, steps = state_of(handle), dict(handle.session.state.steps)
        driver = handle.session.driver()
        try:
            for bucket in buckets(grads):
                driver.launch(bucket)
            outcome = "done" if driver.finish() else "skipped"
        except GraceError as error:
            driver.discard()
            assert len(str(error)) > 20
            outcome = "refused"
            for key, tensors in grads.items():
                for tensor, value in zip(tensors, values[key]):
                    assert bits_equal(tensor, value[rank][number]), "a gradient has changed"
        if outcome != "done":
            assert handle.session.state.steps == steps
            for slot, after in state_of(handle).items():
                torch.testing.assert_close(
                    after, before.get(slot, torch.zeros_like(after)), rtol=1e-4, atol=1e-5
                )
        return outcome, [t for tensors in grads.values() for t in tensors]

    def work(t):
        found = []
        for number in range(STEPS):
            mutations[t.rank].step = number
            found.append(step(t.rank, number))
        return found

    first, second = world.run(work)
    for number, ((outcome, a), (other, b)) in enumerate(zip(first, second)):
        assert outcome == other
        assert number % 2 or outcome == "done", "a step without damage must go well"
        if outcome == "done":
            for mine, theirs in zip(a, b):
                assert bits_equal(mine, theirs) and mine.isfinite().all()
