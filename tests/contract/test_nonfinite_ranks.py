"""NaN and infinities on several real ranks at once, or changed on the way: all ranks decide alike, and the next step is sound."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from contract.cases import Case, bits_equal, build, cases_of, gradients, slots
from contract.wire import Damaging
from grace_dl.errors import GraceError
from grace_dl.transport.torch_dist import TorchTransport
from values import not_none

NAN, INF = math.nan, math.inf
PATTERNS = [(NAN, INF), (INF, -INF), (INF, INF), (NAN, -INF, INF), (-INF, NAN, NAN)]
"""What each rank puts into its gradient; ranks beyond them have finite ones."""

SUMMED = ["none", "fp16", "bf16", "randomk", "powersgd", "acpsgd"]


def by_hand(rank: int, world: int, name: str, apart: bool) -> list[tuple[list[Any], int]]:
    """Outcomes of bad steps, each followed by a clean one, and the number of skipped steps; for every case of a method."""
    found = []
    for case in (case for case in cases_of(name) if case.communicator == "allreduce"):
        handle = build(case, TorchTransport())
        outcomes: list[Any] = []
        for number, pattern in enumerate(PATTERNS):
            bad, good = (g.clone() for g in gradients(world, 2, seed=number)[rank])
            if rank < len(pattern):
                bad.view(-1)[17 + apart * rank] = pattern[rank]
            for gradient in (bad, good):
                try:
                    outcomes.append(handle.step(gradient, "layer.weight"))
                except GraceError as error:
                    outcomes.append(str(error))
            assert all(slot.isfinite().all() for slot in slots(handle).values())
        found.append((outcomes, handle.stats().skipped))
    return found


def check(outcomes: list[list[Any]]) -> None:
    """Bad and clean steps in turns: no rank raises, none has a finite result of a bad step, and all have the same of a clean one."""
    for step, of_ranks in enumerate(zip(*outcomes)):
        assert not [said for said in of_ranks if isinstance(said, str)], f"step {step}"
        if step % 2 == 0:
            assert not any(result.isfinite().all() for result in of_ranks), f"step {step}"
        else:
            assert all(bits_equal(result, of_ranks[0]) for result in of_ranks), f"step {step}"
            assert of_ranks[0].isfinite().all()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("apart", [False, True], ids=["one element", "several elements"])
@pytest.mark.parametrize("name", SUMMED)
def test_different_values_on_each_rank(launch: Any, name: str, apart: bool, world: int) -> None:
    answers = launch(by_hand, world, name, apart)
    for of_ranks in zip(*answers):
        check([outcomes for outcomes, _ in of_ranks])
        assert [skipped for _, skipped in of_ranks] == [len(PATTERNS)] * world


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 48), nn.Linear(48, 24)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return y


def through_ddp(rank: int, world: int, methods: list[str]) -> list[list[Any]]:
    """As above, with a bad matrix, then a bad bias, which is not compressed."""
    found = []
    for method in methods:
        torch.manual_seed(0)
        model = DistributedDataParallel(Net())
        handle = grace.attach(model, method)
        outcomes: list[Any] = []
        for number, pattern in enumerate([*PATTERNS, *PATTERNS]):
            for bad in (True, False):
                model.zero_grad()
                target = (model.module.first.weight, model.module.first.bias)[number >= len(PATTERNS)]
                hook = target.register_hook(spoiled(pattern[rank])) if bad and rank < len(pattern) else None
                x = torch.randn(4, 40, generator=torch.Generator().manual_seed(10 * number + rank))
                try:
                    model(x).square().sum().backward()
                    outcomes.append(torch.cat([not_none(p.grad).view(-1) for p in model.parameters()]))
                except GraceError as error:
                    outcomes.append(str(error))
                if hook is not None:
                    hook.remove()
        handle.detach()
        found.append(outcomes)
    return found


def spoiled(value: float) -> Any:
    def change(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[5] = value
        return gradient

    return change


@pytest.mark.parametrize("world", [2, 3])
def test_different_values_on_each_rank_through_ddp(launch: Any, world: int) -> None:
    methods = ["none", "fp16", "bf16", "randomk:0.3", "powersgd:2", "acpsgd:2"]
    for of_ranks in zip(*launch(through_ddp, world, methods)):
        check(list(of_ranks))


# Values that become non-finite on the way -------------------------------------------------------------------

RECEIVED = [*SUMMED, "topk", "dgc", "threshold", "eden"]
STEPS = 12


class Spoiling:
    """Overwrites numbers in what arrives from the last rank, alike on all ranks, at every other step.

    Single ones at a share of the frame, so that steps reach its whole length, flags and indices included; at the last step
    all but the first eight bytes, and so every scale.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self.step = self.struck = 0

    def __call__(self, verb: str, call: int, received: Tensor) -> None:
        if self.step % 2 == 0 or received.numel() == 0:
            return
        data = received.view(-1).view(torch.uint8)
        part = data[data.numel() // self._world * (self._world - 1) :] if verb == "allgather" else data
        value = (NAN, INF, -INF)[self.step // 2 % 3]
        pattern = {
            torch.float16: struct.pack("<e", value),
            torch.bfloat16: struct.pack("<f", value)[2:],
            torch.float64: struct.pack("<d", value),
        }.get(received.dtype, struct.pack("<f", value))
        width = len(pattern)
        at = int(part.numel() * (self.step / STEPS)) // width * width
        count = 1
        if self.step == STEPS - 1:
            at, count = 8, (part.numel() - 8) // width
        if count > 0 and at + width <= part.numel():
            part[at : at + count * width] = torch.tensor(list(pattern) * count, dtype=torch.uint8)
            self.struck += 1


def receiving(rank: int, world: int, cases: list[Case]) -> list[tuple[list[Any], int]]:
    found = []
    for case in cases:
        spoiling = Spoiling(world)
        handle = build(case, Damaging(TorchTransport(), spoiling))
        outcomes: list[Any] = []
        for number, gradient in enumerate(gradients(world, STEPS, (40, 50))[rank]):
            spoiling.step = number
            before = {name: slot.clone() for name, slot in slots(handle).items()}
            skipped = handle.stats().skipped
            try:
                result: Any = handle.step(gradient, "w")
            except GraceError:
                result = "refused"
            if isinstance(result, str) or handle.stats().skipped > skipped:
                result = "refused" if isinstance(result, str) else "skipped"
                after = slots(handle)
                for name, slot in before.items():
                    torch.testing.assert_close(after[name], slot, rtol=1e-4, atol=1e-5)
            outcomes.append(result)
            assert all(slot.isfinite().all() for slot in slots(handle).values())
        found.append((outcomes, spoiling.struck))
    return found


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", RECEIVED)
def test_received_values_that_are_not_finite(launch: Any, name: str, world: int) -> None:
    """All ranks raise, all skip, or all get the same finite result: the bytes may have hit indices or padding."""
    cases = [case for case in cases_of(name) if case.communicator in ("allreduce", "allgather", "alltoall")]
    answers = launch(receiving, world, cases)
    for case, of_ranks in zip(cases, zip(*answers)):
        assert all(struck >= STEPS // 2 - 1 for _, struck in of_ranks), case
        stopped = 0
        for step, results in enumerate(zip(*(outcomes for outcomes, _ in of_ranks))):
            where = f"{case}, step {step}: {[r if isinstance(r, str) else 'done' for r in results]}"
            if isinstance(results[0], str):
                assert step % 2, where
                assert all(isinstance(r, str) and r == results[0] for r in results), where
                stopped += 1
            else:
                assert not any(isinstance(r, str) for r in results), where
                assert all(bits_equal(r, results[0]) and r.isfinite().all() for r in results), where
        assert stopped, f"{case}: no step was refused or skipped"
