"""One of three ranks sends damaged bytes: the others refuse the step, skip it, or decode finite numbers, all alike.

Runs every method with every memory and communicator it permits. After a step that was refused or skipped, memories
and step counters must be as before. Each run also decodes damaged payloads of the method in one process. Bytes that
announce lengths are sent as they are.
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import TYPE_CHECKING, Any

from trial import Job, describe, run

if TYPE_CHECKING:
    from torch import Tensor

WORLD = 3
STEPS = 40
DECODED = 2000
BATCHES = 12
"""Jobs that together run all cases: starting processes takes longer than a case."""
SHAPE = (24, 60)
SPECIAL = ("0000c07f", "0000807f", "007c007c", "ffffffff", "ffffff7f", "00000080")
"""NaN and infinity as float32 and float16, and what breaks counts and codes."""


def cases() -> list[tuple[str, str, str]]:
    from grace_dl import catalog

    return [
        (name, memory, way)
        for name, info in catalog.methods().items()
        for memory in info.memories
        for way in catalog.communicators_of(info, catalog.MEMORIES[memory])
    ]


def damage(tensor: Tensor, chance: random.Random) -> None:
    """Change a few bytes in place."""
    import torch

    data = tensor.detach().view(-1).view(torch.uint8)
    for _ in range(chance.choice([1, 1, 3, 10]) if data.numel() else 0):
        if chance.random() < 0.5 and data.numel() >= 4:
            at = 4 * chance.randrange(data.numel() // 4)
            data[at : at + 4] = torch.tensor(list(bytes.fromhex(chance.choice(SPECIAL))), dtype=torch.uint8)
        else:
            data[chance.randrange(data.numel())] ^= 1 << chance.randrange(8)


def state_of(handle: Any) -> dict[str, Tensor]:
    return {
        f"{label}/{name}/{slot}": tensor.clone()
        for label, memory in handle.session.memories().items()
        for name, slots in memory.state.items()
        for slot, tensor in memory.settled(slots).items()
    }


def decode(method: str, count: int, chance: random.Random) -> None:
    """Decode damaged payloads in this process."""
    import torch

    from grace_dl import catalog
    from grace_dl.compressor.base import Context
    from grace_dl.errors import PayloadError
    from grace_dl.key import Key

    info = catalog.methods()[method]
    if info.cls.multi_round:
        return
    compressor, x = info.cls(), torch.randn(SHAPE)
    payload, _ = compressor.encode(x, Key("w"))
    ctx, out = Context(x.shape, x.dtype, Key("w")), torch.empty(SHAPE)
    for _ in range(count):
        parts = [part.clone() for part in payload]
        damage(chance.choice(parts), chance)
        try:
            if not int(compressor.faults(parts, ctx)):
                compressor.combine_(out, [parts], ctx)
                assert out.isfinite().all(), "a payload that was found valid decodes to NaN or infinity"
        except PayloadError:
            pass


def train(batch: str, seed: str) -> None:
    """One rank of a job; the last one damages what it sends."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for case in cases()[int(batch) :: BATCHES]:
        print(*case, attempt(*case, random.Random(seed)), flush=True)
    dist.destroy_process_group()
    print("held", flush=True)


def attempt(method: str, memory: str, way: str, chance: random.Random) -> dict[str, int]:
    """Steps of one case, and how many ended which way."""
    import torch
    import torch.distributed as dist

    import grace_dl as grace
    from grace_dl.algebra.named import build
    from grace_dl.errors import GraceError
    from grace_dl.transport.torch_dist import TorchTransport

    rank = dist.get_rank()
    hostile = rank == WORLD - 1
    bad = False

    class Mutating(TorchTransport):
        """Damages what the last rank sends in every other step."""

        def allreduce(self, tensor: Tensor, channel: int = 0) -> Any:
            self._damage(tensor)
            return super().allreduce(tensor, channel)

        def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Any:
            if tensor.dtype is not torch.int64:
                tensor = tensor.clone()  # the memory may still read what it sends
                self._damage(tensor)
            return super().allgather(out, tensor, channel)

        def alltoall(self, out: Tensor, tensor: Tensor, *rest: Any) -> Any:
            tensor = tensor.clone()
            self._damage(tensor)
            return super().alltoall(out, tensor, *rest)

        def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Any:
            if root == self.rank and tensor.dtype is not torch.int64:
                self._damage(tensor)
            return super().broadcast(tensor, root, channel)

        def _damage(self, tensor: Tensor) -> None:
            if hostile and bad:
                damage(tensor, chance)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = build(method, memory=memory, communicator=way)
    handle = grace.manual(value, transport=Mutating())
    torch.manual_seed(rank)
    counts = {"done": 0, "refused": 0, "skipped": 0}
    for step in range(STEPS):
        bad = step % 2 == 1
        grad, before, steps = torch.randn(SHAPE), state_of(handle), dict(handle.session.state.steps)
        skipped = handle.stats().skipped
        try:
            result = handle.step(grad, "w")
            outcome = "skipped" if handle.stats().skipped > skipped else "done"
        except GraceError:
            result, outcome = torch.zeros(SHAPE), "refused"
        counts[outcome] += 1
        seen: list[Any] = [None] * WORLD
        dist.all_gather_object(seen, (outcome, result if outcome == "done" else None))
        assert bad or outcome == "done", f"step {step} without damage: {outcome}"
        assert seen[0][0] == seen[1][0] == outcome or hostile, f"step {step}: {[one for one, _ in seen]}"
        if outcome == "done" and not hostile:
            assert torch.equal(seen[0][1], seen[1][1]) and result.isfinite().all(), f"step {step}"
        if outcome != "done" and not hostile:
            assert handle.session.state.steps == steps, f"step {step} moved a step counter"
            for slot, after in state_of(handle).items():
                old = before.get(slot, torch.zeros_like(after))
                torch.testing.assert_close(after, old, rtol=1e-4, atol=1e-4)
    if rank == 0:
        decode(method, DECODED, chance)
    return counts


def trial(number: int, chance: random.Random) -> tuple[str, str | None]:
    with Job([__file__, "--rank", str(number % BATCHES), str(chance.random())], WORLD) as job:
        ranks = job.wait(limit=900)
    good = all(rank.code == 0 and "held" in rank.output for rank in ranks)
    if good:
        print("\n".join(ranks[0].output.splitlines()[:-1]))
    return f"batch {number % BATCHES}", None if good else describe(ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=60)
