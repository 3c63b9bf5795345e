"""Compiled: selection, index coding, scatter-add, random-k, DGC's correction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import announced, broken
from ..reference import indices as reference_indices
from ..reference import sparse as reference
from ..source import Correction, Source
from ..wire import Sampling, Sent, index_bytes
from .pointer import address, inputs, native_dtype, pairs, part_address, threads

__all__ = [
    "decode_indices",
    "dgc_commit_",
    "dgc_correct_",
    "dgc_dense_",
    "dgc_encode",
    "dgc_step_",
    "encode_indices",
    "randomk_add",
    "randomk_encode",
    "sparse_add",
    "sparse_combine_",
    "sparse_zero_",
    "threshold_encode",
    "topk_encode",
]

VALUE_KINDS = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}


def _check(fault: int) -> None:
    if fault:
        raise broken(_native.FAULTS[fault])


def _sized(values: Tensor, index: Tensor, d: int, k: int) -> tuple[int, int, int]:
    """Addresses of an encoder's outputs, and the code of the values' dtype."""
    if not 0 <= k <= d:
        raise ValueError(f"{k} of {d} elements cannot be selected")
    kind = VALUE_KINDS[values.dtype]
    return address(values, values.dtype, k), kind, address(index, torch.uint8, index_bytes(d, k))


def topk_encode(source: Source, k: int, values: Tensor, index: Tensor) -> None:
    """The `k` largest magnitudes; ties are broken by the lowest index."""
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.topk_encode(source, k, values, index)
    n = x.numel()
    _native.topk_encode(wide, *inputs(source, n), k, *_sized(values, index, n, k), threads())


def threshold_encode(source: Source, threshold: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All elements with |v| >= threshold (possibly none), as values of `dtype` and coded indices."""
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.threshold_encode(source, threshold, dtype)
    n = x.numel()
    at = (wide, *inputs(source, n), threshold)
    k = _native.threshold_find(*at, threads())
    values = torch.empty(k, dtype=dtype)
    index = torch.empty(index_bytes(n, k), dtype=torch.uint8)
    _native.threshold_emit(*at, k, *_sized(values, index, n, k), threads())
    return values, index


def dgc_encode(
    source: Source, k: int, sampling: Sampling, values: Tensor, index: Tensor, count: Tensor
) -> None:
    """At most `k` elements above a threshold estimated from a sample."""
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.dgc_encode(source, k, sampling, values, index, count)
    n = x.numel()
    out = (*_sized(values, index, n, k), address(count, torch.int32, 1))
    _check_sampling(sampling, n)
    _native.dgc_encode(wide, *inputs(source, n), k, *sampling, *out, threads())


def _check_sampling(sampling: Sampling, n: int) -> None:
    rank, samples, start, stride = sampling[:4]
    if samples < n and not (
        0 < rank <= samples and start >= 0 and stride >= 0 and start + (samples - 1) * stride < n
    ):
        raise ValueError(f"{sampling} does not sample {n} elements")


def dgc_step_(
    states: Sequence[Correction],
    mu: float,
    nesterov: bool,
    samplings: Sequence[Sampling],
    payloads: Sequence[Sequence[Tensor]],
) -> Iterator[bool]:
    """Momentum correction, selection and the check of the gradient (False if it is refused) in one pass.

    Processes one state per `next`. All Python work is done in advance, because a pass evicts the interpreter from the
    CPU cache. The tensors must stay alive until then.
    """
    wides, calls, width = [native_dtype(state.v) for state in states], [], threads()
    if None in wides:
        return reference.dgc_step_(states, mu, nesterov, samplings, payloads)
    for wide, (m, v, g, scale, limit), sampling, payload in zip(
        wides, states, samplings, payloads, strict=True
    ):
        values, index, count = payload
        n, k, dtype = v.numel(), values.numel(), v.dtype
        at = address(m, dtype, n), address(v, dtype, n), address(g, dtype, n)
        out = (*_sized(values, index, n, k), address(count, torch.int32, 1))
        _check_sampling(sampling, n)
        calls.append((wide, *at, mu, nesterov, scale, limit, n, k, *sampling, *out, width))
    return starmap(_native.dgc_step, calls)


def dgc_commit_(vs: Sequence[Tensor], ms: Sequence[Tensor] | None, sent: Sequence[Sent]) -> None:
    """Remove the sent elements from each `v`, and zero their momentum unless `ms` is None; decodes indices once."""
    wides, calls, width = [native_dtype(v) for v in vs], [], threads()
    if None in wides:
        return reference.dgc_commit_(vs, ms, sent)
    for place, (wide, v, (values, index, count)) in enumerate(zip(wides, vs, sent, strict=True)):
        d = v.numel()
        m = 0 if ms is None else address(ms[place], v.dtype, d)
        payload = _announced(d, values, index, announced(values, count))
        calls.append((wide, address(v, v.dtype, d), m, *payload, width))
    for fault in list(starmap(_native.dgc_commit, calls)):
        _check(fault)


def _announced(d: int, values: Tensor, index: Tensor, count: int) -> tuple[int, int, int, int, int, int]:
    """A checked payload for `d` elements, as arguments of compiled calls."""
    k = values.numel()
    if not 0 <= count <= k <= d or values.dtype not in VALUE_KINDS:
        raise broken(f"{count} of {k} values of {values.dtype} for {d} elements are announced")
    code = part_address(index, torch.uint8, index_bytes(d, k))
    return d, part_address(values, values.dtype, k), VALUE_KINDS[values.dtype], k, count, code


def sparse_add(
    out: Tensor, values: Tensor, index: Tensor, alpha: float = 1.0, count: int | None = None
) -> None:
    """`out += alpha * decoded`; every index is checked before the first element is touched."""
    wide = native_dtype(out)
    if wide is None:
        return reference.sparse_add(out, values, index, alpha, count)
    d = out.numel()
    sent = _announced(d, values, index, values.numel() if count is None else count)
    _check(_native.sparse_add(wide, address(out, out.dtype, d), *sent, alpha, threads()))


def sparse_combine_(outs: Sequence[Tensor], sent: Sequence[Sequence[Sent]], alpha: float) -> None:
    """Overwrite each of `outs` with alpha times the sum of what all ranks sent for it."""
    wides, calls, width = [native_dtype(out) for out in outs], [], threads()
    if None in wides:
        return reference.sparse_combine_(outs, sent, alpha)
    for wide, out, of_ranks in zip(wides, outs, sent, strict=True):
        d = out.numel()
        payloads = [
            _announced(d, values, index, announced(values, count))[1:] for values, index, count in of_ranks
        ]
        calls.append((wide, address(out, out.dtype, d), d, payloads, alpha, width))
    # All calls before the first check: the interpreter stays out of the cache between them.
    for fault in list(starmap(_native.sparse_combine, calls)):
        _check(fault)


def sparse_zero_(out: Tensor, index: Tensor, k: int, count: int | None = None) -> None:
    """Set the elements at coded indices to zero."""
    wide = native_dtype(out)
    if wide is None:
        return reference.sparse_zero_(out, index, k, count)
    d = out.numel()
    count = k if count is None else count
    if not 0 <= count <= k <= d:
        raise broken(f"{count} of {k} indices among {d} elements are announced")
    code = part_address(index, torch.uint8, index_bytes(d, k))
    _check(_native.sparse_zero(wide, address(out, out.dtype, d), d, k, count, code, threads()))


def encode_indices(indices: Tensor, d: int, k: int, out: Tensor) -> None:
    """Code at most `k` strictly increasing `indices` below `d` into `out` of `index_bytes(d, k)` bytes."""
    count = indices.numel()
    if not out.is_cpu or k == 0:
        return reference_indices.encode_indices(indices, d, k, out)
    if count > k or (count and not 0 <= int(indices[0]) <= int(indices[-1]) < d):
        raise ValueError(f"{count} indices do not fit {k} places among {d} elements")
    at = address(indices, torch.int64, count)
    _native.encode_indices(at, count, d, k, address(out, torch.uint8, index_bytes(d, k)))


def decode_indices(index: Tensor, d: int, k: int, count: int | None = None) -> Tensor:
    """The first `count` (default: all `k`) indices, checked: strictly increasing, below `d`, then padding."""
    if not index.is_cpu:
        return reference_indices.decode_indices(index, d, k, count)
    count = k if count is None else count
    if not 0 <= count <= k <= d:
        raise broken(f"{count} of {k} indices among {d} elements are announced")
    code = part_address(index, torch.uint8, index_bytes(d, k))
    out = torch.empty(count, dtype=torch.int64)
    _check(_native.decode_indices(code, d, k, count, out.data_ptr(), threads()))
    return out


def randomk_encode(source: Source, word: int, scaled: bool, values: Tensor) -> None:
    """The values at the drawn indices, times their stratum's size if `scaled`."""
    x = source.x
    wide = native_dtype(x)
    if wide is None or values.dtype is not x.dtype:
        return reference.randomk_encode(source, word, scaled, values)
    n, k = x.numel(), values.numel()
    if not 0 < k <= n:
        raise ValueError(f"{k} of {n} elements cannot be drawn")
    out = address(values, x.dtype, k)
    _native.randomk_encode(wide, *inputs(source, n), word, scaled, out, k, threads())


def randomk_add(out: Tensor, values: Tensor, word: int, alpha: float = 1.0) -> None:
    """`out += alpha * values` at the drawn indices."""
    wide = native_dtype(out)
    if wide is None:
        return reference.randomk_add(out, values, word, alpha)
    d, k = out.numel(), values.numel()
    if not 0 < k <= d:
        raise broken(f"{k} values came for {d} elements")
    data = part_address(values, out.dtype, k)
    _native.randomk_add(wide, address(out, out.dtype, d), d, data, k, word, alpha, threads())


def dgc_correct_(state: Correction, mu: float, nesterov: bool) -> None:
    """Momentum correction of the clipped gradient."""
    m, v, g, scale, _ = state
    wide = native_dtype(v)
    if wide is None:
        return reference.dgc_correct_(state, mu, nesterov)
    n = v.numel()
    at = tuple(address(tensor, v.dtype, n) for tensor in (m, v, g))
    _native.dgc_correct(wide, *at, mu, nesterov, scale, n, threads())


def dgc_dense_(means: Sequence[Tensor], momenta: Sequence[Tensor], mu: float, nesterov: bool) -> list[bool]:
    """Momentum of dense parameters, after the average; if that is not finite, returns False and changes nothing."""
    wide, at = native_dtype(means[0]), pairs(means, momenta)
    if wide is None or at is None:
        return reference.dgc_dense_(means, momenta, mu, nesterov)
    return _native.dgc_dense(wide, *at, mu, nesterov, threads())
