"""Triton: selecting elements by magnitude, random-k, and adding elements back.

Indices of single payloads are decoded by the reference, those of a bucket by `indices`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..check import broken, payload_part
from ..reference import sparse as reference
from ..reference.indices import decode_indices
from ..source import Source
from ..wire import Sent, index_bytes
from .basic import axpby_
from .indices import combine_entries, commit_entries, decodable, encode_entries
from .launch import TILE, beside, halves, inputs, run, scalars, serves, tiles
from .programs import sparse as programs

__all__ = [
    "dgc_commit_",
    "randomk_add",
    "randomk_encode",
    "sparse_add",
    "sparse_combine_",
    "threshold_encode",
    "topk_encode",
]

KEYS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _before(counts: Tensor) -> Tensor:
    """Exclusive prefix sums."""
    return counts.cumsum(0) - counts


def select(
    source: Source, ef: bool, least: Tensor, k: int | None, ties_count: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted indices and values of the magnitudes above `least`, and their number.

    With `k`, also of the first equal ones, up to k, unless `ties_count` (on the device) is False; then the last index and
    zeros follow. With `ef`, x holds v afterwards. Without `k` the number of elements is read back from the device.
    """
    x = source.x
    n = x.numel()
    count = tiles(n)
    above = torch.empty(count, dtype=torch.int64, device=x.device)
    ties = torch.empty_like(above)
    formed = {"HAS_G": source.grad is not None, "EF": ef, "TILE": TILE}
    run(programs.select_count, count, x, *inputs(source), n, least, above, ties, **formed)
    found = above.sum()
    size = int(found) if k is None else k
    allowed = torch.zeros_like(found) if k is None else k - found
    if ties_count is not None:
        allowed = allowed * ties_count
    index = torch.full((size,), n - 1, dtype=torch.int64, device=x.device)
    values = torch.zeros(size, dtype=x.dtype, device=x.device)
    if ef:
        source = Source(x)  # x already holds v
    arguments = (n, least, _before(above), _before(ties), allowed, index, values)
    has_g = source.grad is not None
    run(programs.select_write, count, x, *inputs(source), *arguments, HAS_G=has_g, TILE=TILE)
    return index, values, found + allowed


def emit(
    x: Tensor,
    ef: bool,
    chosen: Tensor,
    sent: Tensor,
    values: Tensor,
    index: Tensor,
    count: Tensor | None = None,
) -> None:
    """Write values and coded indices, `count` of which are real; with `ef`, subtract the values from x, which holds v."""
    k = values.numel()
    if k == 0:
        return
    reference.narrow_values(sent, values)
    encode_entries(chosen, x.numel(), k, index, count)
    if ef:
        _scatter(x, chosen, values, -1.0, count)


def _scatter(out: Tensor, index: Tensor, values: Tensor, alpha: float, count: Tensor | None = None) -> None:
    k = index.numel()
    if k:
        arguments = (index, values.to(out.dtype), *scalars(alpha), k, index if count is None else count)
        limited = count is not None
        run(programs.scatter_add, tiles(k), out, out, *arguments, LIMITED=limited, TILE=TILE)


def topk_encode(source: Source, k: int, values: Tensor, index: Tensor) -> None:
    """The `k` largest magnitudes; ties are broken by the lowest index."""
    x, ef = source.x, source.leaves("residual")
    n = x.numel()
    if not serves(x) or not 0 < k <= n:
        return reference.topk_encode(source, k, values, index)
    payload_part(values, values.dtype, k)
    payload_part(index, torch.uint8, index_bytes(n, k))
    beside(x, values, index)
    found = torch.empty(n, dtype=KEYS[x.dtype], device=x.device)
    formed = {"HAS_G": source.grad is not None, "EF": ef, "TILE": TILE}
    run(programs.form_keys, tiles(n), x, *inputs(source), n, found, **formed)
    if ef:
        source = Source(x)  # x already holds v
    least = torch.topk(found, k, sorted=False).values.min()
    del found
    chosen, sent, _ = select(source, ef, least, k)
    emit(x, ef, chosen, sent, values, index)


def threshold_encode(source: Source, threshold: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All elements with |v| >= threshold (possibly none), as values of `dtype` and coded indices."""
    x, ef = source.x, source.leaves("residual")
    if not serves(x):
        return reference.threshold_encode(source, threshold, dtype)
    # |v| >= threshold means above the next smaller magnitude.
    least = reference.magnitudes(torch.tensor(threshold, dtype=x.dtype)).sub_(1).to(x.device)
    chosen, sent, _ = select(source, ef, least, None)
    k = chosen.numel()
    values = torch.empty(k, dtype=dtype, device=x.device)
    index = torch.empty(index_bytes(x.numel(), k), dtype=torch.uint8, device=x.device)
    emit(x, ef, chosen, sent, values, index)
    return values, index


def sparse_add(
    out: Tensor, values: Tensor, index: Tensor, alpha: float = 1.0, count: int | None = None
) -> None:
    """`out += alpha * decoded`; every index is checked before the first element is touched."""
    if not serves(out):
        return reference.sparse_add(out, values, index, alpha, count)
    count = values.numel() if count is None else count
    beside(out, values, index)
    chosen = decode_indices(index, out.numel(), values.numel(), count)
    if bool((values[count:] != 0).any()):
        raise broken(f"values behind the {count} announced ones are not zero")
    _scatter(out, chosen, values[:count], alpha)


def randomk_encode(source: Source, word: int, scaled: bool, values: Tensor) -> None:
    """The values at the drawn indices, times their stratum's size if `scaled`."""
    x, ef, k = source.x, source.leaves("residual"), values.numel()
    if not serves(x) or values.dtype is not x.dtype or not 0 < k <= x.numel():
        return reference.randomk_encode(source, word, scaled, values)
    beside(x, values)
    n = x.numel()
    if ef and source.grad is not None:
        # Every element changes, not only the drawn ones.
        axpby_(x, source.grad, source.beta, source.gamma)
        source = Source(x)
    arguments = (*inputs(source), *halves(word), n, k, values)
    constants = {"SCALED": scaled, "HAS_G": source.grad is not None, "EF": ef, "TILE": TILE}
    run(programs.randomk_encode, tiles(k), x, *arguments, **constants)


def randomk_add(out: Tensor, values: Tensor, word: int, alpha: float = 1.0) -> None:
    """`out += alpha * values` at the drawn indices."""
    n, k = out.numel(), values.numel()
    if not serves(out) or values.dtype is not out.dtype or not 0 < k <= n:
        return reference.randomk_add(out, values, word, alpha)
    beside(out, values)
    run(programs.randomk_add, tiles(k), out, out, values, *halves(word), *scalars(alpha), n, k, TILE=TILE)


def sparse_combine_(outs: Sequence[Tensor], sent: Sequence[Sequence[Sent]], alpha: float) -> None:
    """Overwrite each of `outs` with alpha times the sum of what all ranks sent for it."""
    if decodable([(out, payload) for out, of_ranks in zip(outs, sent) for payload in of_ranks]):
        combine_entries(outs, sent, alpha)
    else:
        reference.combine_with(sparse_add, outs, sent, alpha)


def dgc_commit_(vs: Sequence[Tensor], ms: Sequence[Tensor] | None, sent: Sequence[Sent]) -> None:
    """Remove sent elements from each `v`, and zero their momentum (Lin 2018, section 3.2) unless `ms` is None."""
    if decodable(list(zip(vs, sent))):
        commit_entries(vs, ms, sent)
    else:
        reference.dgc_commit_(vs, ms, sent)
