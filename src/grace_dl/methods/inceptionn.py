"""INCEPTIONN: as many bits as an element's exponent needs for a given error bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload
from ..compressor.codec import KernelCodec
from ..errors import PayloadError
from ..kernels import Kernels, Source
from ..kernels.check import payload_parts
from ..kernels.faults import Fault
from ..kernels.wire import packed_bytes
from ..key import Key
from ..registry import register
from ..settings import number


@register("inceptionn", family="lower precision", bits="2 to 34, varies", reference="Li 2018, MICRO")
class INCEPTIONNCompressor(KernelCodec):
    """Drops values below the error bound, sends others as 8- or 16-bit multiples of it, and large values uncompressed.

        b the bound:  Q(x) = 0 if |x| < b,  b · round(x / b) if |x| < 32768 b,  else x

    error_bound: no element is off by more than this; the largest power of two that does not exceed it is used, because
    multiples of a power of two are exact.
    """

    def __init__(self, error_bound: float = 2.0**-10) -> None:
        super().__init__()
        why = "the largest error an element may have, a small share of a typical gradient such as 2**-10"
        error_bound = number("error_bound", error_bound, why, least=2.0**-100, most=2.0**100)
        self.error_bound = math.ldexp(0.5, math.frexp(error_bound)[1])

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device | None = None) -> Payload:
        """Sizes depend on the data: only the payload of an empty tensor can be allocated in advance."""
        kinds = () if numel else (torch.uint8, torch.uint8, torch.int16, dtype)
        return [torch.empty(0, dtype=kind, device=device) for kind in kinds]

    def typical_bytes(self, numel: int) -> int:
        return numel  # 2 to 34 bits per element; 9 on average if gradients are ten times the bound

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        return kernel.inceptionn_encode(source, self.error_bound)

    def check(self, payload: Payload, numel: int, dtype: torch.dtype) -> None:
        if len(payload) != 4:
            raise PayloadError(
                f"{len(payload)} tensors arrived where 4 belong; the peer uses another method."
            )
        small, medium, raw = (part.numel() for part in payload[1:])
        if max(small, medium, raw) > numel:
            raise PayloadError(
                f"{max(small, medium, raw)} values arrived for {numel} elements: broken bytes."
            )
        kinds = (
            (torch.uint8, packed_bytes(numel, 2)),
            (torch.uint8, small),
            (torch.int16, medium),
            (dtype, raw),
        )
        payload_parts(payload, kinds)

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        tags, small, medium, raw = payload
        return kernel.check_inceptionn(
            tags, (small.numel(), medium.numel(), raw.numel()), raw, ctx.numel, most
        )

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        kernels.of(out).inceptionn_add(out, payload, self.error_bound, alpha)
