"""Casts to 16 bits, and to e4m3 with a scale per block."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..check import broken, payload_part, working
from ..source import Source
from ..wire import E4M3_MAX, blocks, fp8_limit
from .basic import compensated, safe

__all__ = ["cast_add", "cast_encode", "fp8_add", "fp8_encode"]


def cast_encode(source: Source, workers: int, limit: float, out: Tensor) -> None:
    """out = v / workers, rounded to nearest even; finite values saturate at `limit`, NaN and Inf are preserved.

    The residual is relative to `workers` times the sent value. float64 is rounded to float32 first.
    """
    x = source.x
    working(x)
    payload_part(out, out.dtype, x.numel())
    v = compensated(source)
    y = v * (1.0 / workers)
    y = torch.where(torch.isfinite(y), y.clamp(-limit, limit), y)
    out.copy_(y.to(torch.float32))
    if source.leaves("residual"):
        x.view(-1).copy_(v - out.to(x.dtype) * float(workers))


def cast_add(out: Tensor, payload: Tensor) -> None:
    """out += payload, widened."""
    working(out)
    payload_part(payload, payload.dtype, out.numel())
    out.view(-1).add_(payload.to(out.dtype))


def fp8_encode(source: Source, block: int, codes: Tensor, scales: Tensor) -> None:
    """e4m3 of v / scale, rounded to nearest even, with scale = absmax / 448 per block (uint8 codes)."""
    x = source.x
    working(x)
    n = x.numel()
    payload_part(codes, torch.uint8, n)
    payload_part(scales, x.dtype, blocks(n, block))
    v = compensated(source)
    rows = pad(v, (0, -n % block)).view(-1, block)
    scale = (rows.abs().amax(1) / E4M3_MAX).clamp(max=fp8_limit(x.dtype))
    y = (rows / safe(scale)[:, None]).clamp(-E4M3_MAX, E4M3_MAX)
    coded = y.to(torch.float32).to(torch.float8_e4m3fn).view(-1)[:n]
    codes.copy_(coded.view(torch.uint8))
    scales.copy_(scale)
    if source.leaves("residual"):
        x.view(-1).copy_(v - coded.to(x.dtype) * scale.repeat_interleave(block)[:n])


def fp8_parts(out: Tensor, codes: Tensor, scales: Tensor, block: int) -> None:
    """Raise unless codes and scales are those of `out`; their contents are checked on the host only (`check.shown`)."""
    working(out)
    n = out.numel()
    payload_part(codes, torch.uint8, n)
    payload_part(scales, out.dtype, blocks(n, block))
    if not out.is_cpu:
        return
    if not bool(((scales >= 0) & (scales <= fp8_limit(out.dtype))).all()):
        raise broken("a block's scale is negative, too large or not finite")
    if bool(((codes & 0x7F) == 0x7F).any()):
        raise broken("an e4m3 code stands for NaN")


def fp8_add(out: Tensor, codes: Tensor, scales: Tensor, block: int) -> None:
    """out += e4m3 values times the scale of their block."""
    fp8_parts(out, codes, scales, block)
    values = codes.view(torch.float8_e4m3fn).to(out.dtype)
    out.view(-1).add_(values * scales.repeat_interleave(block)[: out.numel()])
