"""Triton: coding sorted indices, and decoding those of all payloads of a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..check import announced, broken, payload_part
from ..reference import indices as reference
from ..reference.indices import decode_indices
from ..wire import Sent, index_bytes, index_parts, is_bitmap, low_width
from .bucket import DTYPES, run_table, together
from .launch import TILE, beside, run, runs, scalars, tiles
from .programs import indices as programs

__all__ = ["encode_indices"]

BYTES = 128
"""Bytes of coded indices per program."""


def encode_indices(indices: Tensor, d: int, k: int, out: Tensor) -> None:
    """Code at most `k` strictly increasing `indices` below `d` into `out` of `index_bytes(d, k)` bytes."""
    if k == 0 or not runs(out):
        return reference.encode_indices(indices, d, k, out)
    encode_entries(indices, d, k, out, None)


def encode_entries(indices: Tensor, d: int, k: int, out: Tensor, count: Tensor | None) -> None:
    """The same; with `count`, a number on the device, only so many of the `k` indices are real, the others d - 1."""
    payload_part(indices, torch.int64, indices.numel())
    payload_part(out, torch.uint8, index_bytes(d, k))
    beside(out, indices, count)
    given, bitmap = indices.numel(), is_bitmap(d, k)
    width = 0 if bitmap else low_width(d, k)
    low, bits = (0, d) if bitmap else (index_parts(d, k)[0], k + (d >> width) + 1)
    marks = torch.zeros(bits, dtype=torch.uint8, device=out.device)
    limited = {"BITMAP": bitmap, "LIMITED": count is not None, "TILE": TILE}
    number = indices if count is None else count
    run(programs.mark_entries, tiles(k), out, indices, given, k, d, number, width, marks, **limited)
    arguments = (indices, given, k, d, width, low, marks, bits, out)
    run(programs.pack_entries, tiles(out.numel(), BYTES), out, *arguments, BYTES=BYTES)


Targets = Sequence[tuple[Tensor, Sent]]
"""Payloads, each with a tensor of the size they are decoded to."""


def decodable(targets: Targets) -> bool:
    """Whether `Entries` supports these payloads."""
    values = targets[0][1][0]
    kinds = {sent[0].dtype for _, sent in targets}
    return together([out for out, _ in targets]) and kinds == {values.dtype} and values.dtype in DTYPES


class Entries:
    """The decoded indices of payloads, one after another on the device.

    On the host an invalid payload raises; payloads on a device were checked before, with all others of a step.
    """

    def __init__(self, targets: Targets) -> None:
        for out, sent in targets:
            _check(out, *sent)
        ks = [sent[0].numel() for _, sent in targets]
        self.first = list(accumulate(ks, initial=0))
        """Where the entries of each payload begin."""
        x = targets[0][0]
        self.indices = torch.empty(self.first.pop(), dtype=torch.int64, device=x.device)
        lines, programs_ = [], 0
        for (out, (values, index, _)), first in zip(targets, self.first):
            d, k = out.numel(), values.numel()
            if k == 0:
                continue
            low, width, bits = 0, -1, d
            if not is_bitmap(d, k):
                width = low_width(d, k)
                low, bits = index_parts(d, k)[0], k + (d >> width) + 1
            at = index.data_ptr()
            lines.append([programs_, at + low, bits, at, low, width, k, first])
            programs_ += tiles(bits)
        if lines:
            counts = torch.empty(programs_, dtype=torch.int64, device=x.device)
            run_table(programs.count_marks, lines, programs_, x, counts)
            before = counts.cumsum(0) - counts
            run_table(programs.decode_marks, lines, programs_, x, before, self.indices)


def _check(out: Tensor, values: Tensor, index: Tensor, count: Tensor | None) -> None:
    beside(out, values, index, count)
    payload_part(index, torch.uint8, index_bytes(out.numel(), values.numel()))
    if count is not None:
        payload_part(count, torch.int32, 1)
    if out.is_cpu:
        valid = announced(values, count)
        decode_indices(index, out.numel(), values.numel(), valid)
        if bool((values[valid:] != 0).any()):
            raise broken(f"values behind the {valid} announced ones are not zero")


def _line(sent: Sent, first: int) -> list[int]:
    values, _, count = sent
    return [first, values.numel(), values.data_ptr(), 0 if count is None else count.data_ptr()]


def combine_entries(outs: Sequence[Tensor], sent: Sequence[Sequence[Sent]], alpha: float) -> None:
    """Overwrite each of `outs` with alpha times the sum of what all ranks sent for it."""
    targets = [(out, payload) for out, of_ranks in zip(outs, sent) for payload in of_ranks]
    entries = Entries(targets)
    firsts = iter(entries.first)
    lines, count = [], 0
    for out, of_ranks in zip(outs, sent):
        line = [count, out.data_ptr(), out.numel(), 0]
        for payload in of_ranks:
            line += _line(payload, next(firsts))
        lines.append(line)
        count += tiles(out.numel())
    kinds = {"DTYPE": DTYPES[outs[0].dtype], "VALUE": DTYPES[targets[0][1][0].dtype]}
    more = (len(sent[0]), entries.indices, *scalars(alpha))
    run_table(programs.combine_entries, lines, count, outs[0], *more, **kinds)


def commit_entries(vs: Sequence[Tensor], ms: Sequence[Tensor] | None, sent: Sequence[Sent]) -> None:
    """Subtract what was sent from each of `vs`, and zero `ms` there if given."""
    targets = list(zip(vs, sent))
    entries = Entries(targets)
    lines, count = [], 0
    for place, ((v, payload), first) in enumerate(zip(targets, entries.first)):
        m = 0
        if ms is not None:
            beside(v, ms[place])
            m = ms[place].data_ptr()
        lines.append([count, v.data_ptr(), v.numel(), m, *_line(payload, first)])
        count += tiles(payload[0].numel())
    kinds = {"DTYPE": DTYPES[vs[0].dtype], "VALUE": DTYPES[sent[0][0].dtype], "MASK": ms is not None}
    run_table(programs.commit_entries, lines, count, vs[0], entries.indices, **kinds)
