"""Which rank owns which element in a sparse all-reduce.

The elements of a parameter are taken in groups as large as there are ranks, and every rank owns one element of each
group: which one, a hash of the parameter's name and the group's number says. Neighbouring elements therefore have
different owners, and large elements that lie close together, or at a regular distance, do not burden one rank. Ownership
depends on nothing but name, size and number of ranks, so that buckets can be rebuilt without moving state.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def groups(numel: int, ranks: int) -> int:
    """How many elements of a parameter a rank owns; of the last group, it may own none.

    >>> groups(10, 4)
    3
    """
    return -(-numel // ranks)


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


def _rotation(group: Tensor, seed: int | Tensor, ranks: int) -> Tensor:
    """By how many places the owners of a group are rotated: 32 well-mixed bits, scaled to 0..ranks-1."""
    word = (group + seed) & _WORD
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _WORD
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _WORD
    return ((word ^ (word >> 16)) * ranks) >> 32


def positions(name: str, numel: int, owner: int, ranks: int, device: torch.device | None = None) -> Tensor:
    """The positions of the elements that a rank owns, by group; in the last group it may be beyond the end.

    >>> sorted(torch.cat([positions("w", 8, owner, 4) for owner in range(4)]).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    group = torch.arange(groups(numel, ranks), device=device)
    return group * ranks + (owner - _rotation(group, _seed(name), ranks)) % ranks


def spread(owned: Tensor, name: str, numel: int, owner: int, ranks: int) -> Tensor:
    """The elements that a rank owns at their positions in the parameter, flat; zero elsewhere."""
    where = positions(name, numel, owner, ranks, owned.device)
    # Room for the elements beyond the end, which are dropped.
    whole = owned.new_zeros(groups(numel, ranks) * ranks)
    whole[where] = owned.view(-1)
    return whole[:numel].clone()


class Owners:
    """The elements of several parameters in a row, and the owned ones of every rank in a row."""

    def __init__(
        self, names: Sequence[str], numels: Sequence[int], ranks: int, device: torch.device | None = None
    ) -> None:
        self.names, self.ranks = list(names), ranks
        self.numels = list(numels)
        self.groups = [groups(numel, ranks) for numel in numels]
        self.numel, self.owned = sum(numels), sum(self.groups)
        """Elements of all parameters, and places for those that a rank owns."""

        def at(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self._seeds = at([_seed(name) for name in names])
        self._numels = at(self.numels)
        self._starts = at([0, *accumulate(self.numels)][:-1])
        self._owned_starts = at([0, *accumulate(self.groups)][:-1])

    def locate(self, found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The owner of each element, and its place among what that rank owns.

        `found`: positions within each parameter.
        """
        counts = torch.tensor([part.numel() for part in found], device=self._seeds.device)
        parameter = torch.repeat_interleave(torch.arange(len(found), device=counts.device), counts)
        where = torch.cat(list(found))
        group = where // self.ranks
        owner = (where + _rotation(group, self._seeds[parameter], self.ranks)) % self.ranks
        return owner, self._owned_starts[parameter] + group

    def whole(self, places: Tensor, owner: int | Tensor) -> tuple[Tensor, Tensor]:
        """The positions in all parameters of what a rank owns at `places`, and which of them exist."""
        parameter = torch.searchsorted(self._owned_starts, places, right=True) - 1
        group = places - self._owned_starts[parameter]
        turned = _rotation(group, self._seeds[parameter], self.ranks)
        position = group * self.ranks + (owner - turned) % self.ranks
        return self._starts[parameter] + position, position < self._numels[parameter]

    def missing(self, owner: int) -> Tensor:
        """The places of a rank behind which there is no element."""
        last = self._owned_starts + torch.tensor(self.groups, device=self._seeds.device) - 1
        return last[~self.whole(last, owner)[1]]
