"""What decides a bucket: the flags of all ranks, and faults in their payloads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import PayloadError
from ..kernels.check import broken
from ..kernels.faults import MESSAGES, RESULT_NOT_FINITE, Fault
from ..pipeline.frame import FAILED, NONFINITE, UNUSED, USED, SumFrame, check_flags
from ..pipeline.request import Verdict, read
from .transaction import BucketTransaction, peer_errors


class Inspection:
    """The findings of one bucket, on the gradients' device until the verdict; then the combined flag of each segment."""

    def __init__(self, names: Sequence[str], transactions: Sequence[BucketTransaction]) -> None:
        self.joint: list[int] = []
        """By segment, the worst flag of all ranks; known after the verdict."""
        self._names = names
        self._transactions = transactions
        self._faults: list[Fault] = []
        self._places: list[tuple[int, int]] = []

    def add(self, rank: int, place: int, fault: Fault) -> None:
        """A fault of what a rank sent for a segment, or 0."""
        if isinstance(fault, Tensor) or fault:
            self._faults.append(fault)
            self._places.append((rank, place))

    def flag(self, ranks: int, errors: list[Exception]) -> int:
        """The flag of a single segment whose payloads are not all valid, or 0; adds to `errors`. Reads faults at once."""
        if not self._faults:
            return 0
        verdict = self.gathered(torch.full((ranks, 1), USED))
        good, found = verdict.decide(read([verdict.codes])[0])
        errors += found
        return FAILED if found else 0 if good else NONFINITE

    def gathered(self, flags: Tensor, used: Sequence[bool] = ()) -> Verdict:
        """The verdict by the flags of each rank, of shape (ranks, segments).

        `used`: the segments that this rank used.
        """
        ranks, count = flags.shape

        def decide(codes: list[float]) -> tuple[bool, list[Exception]]:
            found = [
                [int(code) for code in codes[rank * count : (rank + 1) * count]] for rank in range(ranks)
            ]
            errors: list[Exception] = []
            for rank, of_rank in enumerate(found):
                errors += check_flags(of_rank, rank) or peer_errors(of_rank, f"rank {rank}")
            self.joint = [max(of_ranks) for of_ranks in zip(*found)]
            for name, flag, own in zip(self._names, self.joint, used):
                if own and flag == UNUSED:
                    errors.append(broken(f"it says that no rank used {name!r}, but this rank did"))
            for (rank, place), fault in zip(self._places, codes[ranks * count :]):
                # Where a rank has flagged a segment, ranks may not be able to check it, and nobody decodes it.
                if max(of_rank[place] for of_rank in found) in (USED, UNUSED) and fault:
                    errors += self._blame(int(fault), place, f"rank {rank}")
            return self._outcome(errors)

        return Verdict([flags, *self._faults], decide)

    def summed(self, flags: Tensor, ranks: int) -> Verdict:
        """The verdict by the sums of all ranks' flags. Sums that are not finite are so on every rank: the step is skipped."""
        count = len(self._names)

        def decide(codes: list[float]) -> tuple[bool, list[Exception]]:
            lanes = SumFrame.lane_count(count)
            try:
                self.joint = SumFrame.read(codes[:lanes], ranks)
            except PayloadError as error:
                return False, [error]
            errors = peer_errors(self.joint)
            for (_, place), fault in zip(self._places, codes[lanes:]):
                if fault:
                    self.joint[place] = max(self.joint[place], NONFINITE)
            return self._outcome(errors)

        return Verdict([flags, *self._faults], decide)

    def _blame(self, fault: int, place: int, who: str) -> list[Exception]:
        if fault == RESULT_NOT_FINITE:
            self.joint[place] = max(self.joint[place], NONFINITE)
            return []
        return [broken(f"{MESSAGES[fault]}, in what {who} sent for {self._names[place]!r}")]

    def _outcome(self, errors: list[Exception]) -> tuple[bool, list[Exception]]:
        own = [error for transaction in self._transactions for error in transaction.errors]
        return NONFINITE not in self.joint and FAILED not in self.joint, own or errors


def stacked(flags: Sequence[Sequence[int]]) -> Tensor:
    """Flags that are known on the host, as `Inspection.gathered` takes them."""
    return torch.tensor(flags, dtype=torch.int64).view(len(flags), -1)
