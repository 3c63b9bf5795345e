"""DeMo: the largest cosine coefficients of chunks of the momentum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.codec import KernelCodec
from ..compressor.sparse import check_value_dtype, value_dtype
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import DCT_SIDE, DctLayout
from ..key import Key
from ..registry import register
from ..settings import flag, whole


@register(
    "demo",
    family="sparsifier",
    bits="kept x (value + 12) / 4096",
    reference="Peng 2024, arXiv:2411.19870",
    memories=("demo", "residual", "none"),
)
class DemoCompressor(KernelCodec):
    """Sends the largest coefficients of the cosine transform of chunks of 64 x 64 elements.

        m ← decay · m + g,  q = the `kept` largest of D m Dᵀ,  m ← m − Dᵀ q D

    D is the orthonormal cosine transform (DCT-II), m the momentum that its own memory keeps, and Dᵀ q D what peers decode.
    Chunks are tiles of a matrix whose sides are multiples of 64, and 4096 consecutive elements otherwise. With its own memory,
    what is transformed is a momentum, which gives up what was sent; the optimizer then needs no momentum.

    kept: coefficients of a chunk that are sent. Ties are broken by the lowest index.
    sign: the result is the sign of the average, as in the paper; otherwise it is the average.
    value_dtype: "float16" or "bfloat16" halves the values on the wire; None sends the gradient's own precision.
    """

    def __init__(self, kept: int = 32, sign: bool = False, value_dtype: str | None = None) -> None:
        super().__init__()
        self.kept = whole("kept", kept, "coefficients of a chunk that are sent", least=1, most=DCT_SIDE**2)
        self.sign = flag("sign", sign)
        self.value_dtype = check_value_dtype(value_dtype)

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return DctLayout(self.kept).spec(numel, value_dtype(self.value_dtype, dtype))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        positions, values = out
        kernel.dct_encode(source, DctLayout.of(self.kept, source.x.shape), positions, values)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault | None:
        positions, values = payload
        # An element is a sum of `kept` coefficients, each times 1/32 at most; the last chunk may send one more of its share.
        gain = 1 + self.kept / 32
        return kernel.check_dct(positions, values, ctx.numel, DctLayout(self.kept), most / gain)

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        kernels.of(out).dct_add(out, [payload], DctLayout.of(self.kept, ctx.shape), alpha)

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        for payload in payloads:
            self.check(payload, out.numel(), out.dtype)
        if out.numel() == 0:
            return
        kernel = kernels.of(out)
        kernel.clear_(out)
        share = 1.0 / len(payloads) if self.average else 1.0
        kernel.dct_add(out, payloads, DctLayout.of(self.kept, ctx.shape), share)
        if self.sign:
            out.sign_()
