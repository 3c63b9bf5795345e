"""Chunk top-k: the largest elements of each chunk, in one to four bits; the codec of SparseLoCo."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.sparse import SparseCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import Chunking
from ..key import Key
from ..registry import register
from ..settings import choice, whole


@register(
    "chunktopk",
    family="sparsifier",
    bits="kept x (log2(chunk) + bits) / chunk",
    reference="SparseLoCo, arXiv:2508.15706",
    communicator={1: "allgather", 12: "sparse_allreduce"},
)
class ChunkTopKCompressor(SparseCodec):
    """Sends the largest magnitudes of each chunk of consecutive elements, as positions and values of a few bits.

        S = the `kept` largest |x| of a chunk
        Q(x) = sign(x) · (mean magnitude of the bin of |x|) in S, else 0

    kept: elements of a chunk that are sent. Ties are broken by the lowest index.
    chunk: elements of a chunk, a power of two from 64 to 65536.
    bits: 1, 2 or 4 bits of a value: its sign and the number of a bin. The bins of a chunk divide the range of the magnitudes
        it sends, and each is decoded to its mean.
    """

    def __init__(self, kept: int = 64, chunk: int = 4096, bits: int = 2) -> None:
        super().__init__()
        sizes = tuple(1 << exponent for exponent in range(6, 17))
        self.chunk = choice("chunk", chunk, sizes, "powers of two, so that positions fill whole bits")
        self.kept = whole("kept", kept, "elements of a chunk that are sent", least=1, most=self.chunk)
        self.bits = choice("bits", bits, (1, 2, 4), "bits of a value on the wire")

    @property
    def _chunking(self) -> Chunking:
        return Chunking(self.chunk, self.kept, self.bits, self.chunk.bit_length() - 1)

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return self._chunking.spec(numel)

    def chosen(self, numel: int) -> int:
        return self._chunking.sent(numel)

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.chunktopk_encode(source, self._chunking, *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        positions, codes, means = payload
        return kernel.check_chunktopk(positions, codes, means, ctx.numel, self._chunking, most)

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        positions, codes, means = payload
        kernels.of(out).chunktopk_add(out, positions, codes, means, self._chunking, alpha)
