"""The operations of a backend: mypy checks every backend's module against `Kernels`.

Encoders write their payload into their last arguments; `wire` defines the sizes. Decoders check a payload before they
change anything, and raise `PayloadError`. Tensors are contiguous; kernels ignore their shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from .faults import VALUE_NOT_FINITE, Fault
from .source import Correction, Source
from .wire import Chunking, DctLayout, Payloads, Sampling, Sent


class Kernels(Protocol):
    """The interface of a backend. The reference implements all of it; the others replace what they can."""

    __name__: str

    # Dense arithmetic ---------------------------------------------------------------------------------

    def all_finite(self, x: Tensor) -> bool:
        """Whether `x` holds no infinity and no NaN."""

    def ordinary(self, x: Tensor) -> bool:
        """Whether all magnitudes of `x` are below `limits.LARGE`."""

    def copy_finite_(self, outs: Sequence[Tensor], xs: Sequence[Tensor]) -> list[bool]:
        """out = x for each pair, unless x holds an infinity or NaN; whether it does not."""

    def finite_each(self, xs: Sequence[Tensor]) -> Tensor:
        """Whether all magnitudes of each of `xs` are below `limits.HUGE`, as a tensor on their device, without a host wait."""

    def average_(self, outs: Sequence[Tensor], parts: Sequence[Sequence[Tensor]], divisor: float) -> None:
        """Each of `outs` = the sum of its part of every rank, in their order, over `divisor`."""

    def axpby_(self, x: Tensor, g: Tensor, beta: float, gamma: float) -> Tensor:
        """x = beta * x + gamma * g, in place, every operation rounded."""

    def clear_(self, out: Tensor) -> None:
        """Zero all of `out`."""

    def square_sum(self, x: Tensor) -> float:
        """The sum of squares in float64, bit-identical on every backend."""

    def uniforms(self, word: int, n: int, like: Tensor, begin: int = 0) -> Tensor:
        """Uniform numbers in [0, 1) for elements begin..begin+n, in the dtype of `like`."""

    def largest(self, x: Tensor) -> float:
        """The largest magnitude of `x`; not finite if an element is not."""

    def divide_(self, x: Tensor, divisor: float) -> Fault:
        """x = x / divisor; a fault if the result is not finite."""

    # Checks of a peer's payload: nothing is changed, and nothing copied from a device (`faults`) --------

    # Valid contents may still decode to elements larger than `most`: RESULT_NOT_FINITE.

    def check_values(self, values: Tensor, most: float, fault: int = VALUE_NOT_FINITE) -> Fault: ...

    def check_scales(self, scales: Tensor, most: float) -> Fault: ...

    def check_means(self, means: Tensor, most: float) -> Fault: ...

    def check_codes(self, codes: Tensor, n: int, bits: int, most: int, mask: int = 0xFFFF) -> Fault: ...

    def check_padding(self, codes: Tensor, n: int, bits: int) -> Fault: ...

    def check_exponents(self, exponents: Tensor, low: int, high: int, most: int) -> Fault: ...

    def check_sparse(
        self, values: Tensor, index: Tensor, d: int, most: float, count: Tensor | None = None
    ) -> Fault: ...

    def check_adaq(
        self, means: Tensor, counts: Tensor, index: Tensor, signs: Tensor, d: int, slots: int, most: float
    ) -> Fault: ...

    def check_inceptionn(
        self, tags: Tensor, sizes: tuple[int, int, int], raw: Tensor, d: int, most: float
    ) -> Fault: ...

    def check_chunktopk(
        self, positions: Tensor, codes: Tensor, means: Tensor, d: int, chunking: Chunking, most: float
    ) -> Fault: ...

    def check_dct(
        self, positions: Tensor, values: Tensor, d: int, layout: DctLayout, most: float
    ) -> Fault: ...

    # Casts and tables: "residual" -----------------------------------------------------------------

    def cast_encode(self, source: Source, workers: int, limit: float, out: Tensor) -> None: ...

    def cast_add(self, out: Tensor, payload: Tensor) -> None: ...

    def fp8_encode(self, source: Source, block: int, codes: Tensor, scales: Tensor) -> None: ...

    def fp8_add(self, out: Tensor, codes: Tensor, scales: Tensor, block: int) -> None: ...

    def block_encode(
        self,
        source: Source,
        block: int,
        levels: int,
        bits: int,
        norm: str,
        word: int,
        codes: Tensor,
        scales: Tensor,
    ) -> None: ...

    def block_add(
        self, out: Tensor, codes: Tensor, scales: Tensor, block: int, levels: int, bits: int
    ) -> None: ...

    def u8bit_encode(self, source: Source, codes: Tensor, scale: Tensor) -> None: ...

    def u8bit_add(self, out: Tensor, codes: Tensor, scale: Tensor) -> None: ...

    def natural_encode(self, source: Source, word: int, codes: Tensor, bases: Tensor) -> None: ...

    def natural_add(self, out: Tensor, codes: Tensor, bases: Tensor) -> None: ...

    def ternary_encode(
        self, source: Source, clip: float, word: int, codes: Tensor, scale: Tensor
    ) -> None: ...

    def ternary_add(self, out: Tensor, codes: Tensor, scale: Tensor) -> None: ...

    def eden_encode(
        self, source: Source, bits: int, least_squares: bool, word: int, codes: Tensor, scales: Tensor
    ) -> None: ...

    def eden_add(
        self, out: Tensor, codes: Tensor, scales: Tensor, bits: int, word: int, alpha: float = 1.0
    ) -> None: ...

    def sketch_encode(self, source: Source, bits: int, codes: Tensor, means: Tensor) -> None: ...

    def sketch_add(
        self, out: Tensor, codes: Tensor, means: Tensor, bits: int, alpha: float = 1.0
    ) -> None: ...

    def inceptionn_encode(self, source: Source, bound: float) -> list[Tensor]: ...

    def inceptionn_add(
        self, out: Tensor, payload: list[Tensor], bound: float, alpha: float = 1.0
    ) -> None: ...

    # Signs: "compensated" for the first, "deferred" for the two with means --------------------

    def sign_encode(self, source: Source, word: int, bits: Tensor, flag: Tensor) -> None: ...

    def sign_add(self, out: Tensor, bits: Tensor, flag: Tensor) -> None: ...

    def sign_vote(self, out: Tensor, ballots: Sequence[Tensor], word: int) -> None: ...

    def scaled_sign_encode(self, source: Source, bits: Tensor, scale: Tensor) -> None: ...

    def scaled_sign_add(self, out: Tensor, bits: Tensor, scale: Tensor) -> None: ...

    def onebit_encode(self, source: Source, bits: Tensor, means: Tensor) -> None: ...

    def onebit_add(self, out: Tensor, bits: Tensor, means: Tensor) -> None: ...

    def settled(self, x: Tensor, owed: Tensor) -> Tensor:
        """x minus its deferred part: owed[0] where x is negative, owed[1] elsewhere."""

    # All tensors of a bucket and all ranks at once: payloads by tensor and rank ---------------------------

    def block_combine_(
        self, outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int, levels: int, bits: int
    ) -> None:
        """Each of `outs` = the sum over ranks of what `block_add` adds, over `divisor`."""

    def fp8_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int) -> None:
        """Each of `outs` = the sum over ranks of what `fp8_add` adds, over `divisor`."""

    def natural_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Each of `outs` = the sum over ranks of what `natural_add` adds, over `divisor`."""

    def u8bit_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Each of `outs` = the sum over ranks of what `u8bit_add` adds, over `divisor`."""

    def ternary_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Each of `outs` = the sum over ranks of what `ternary_add` adds, over `divisor`."""

    def sign_combine_(self, outs: Sequence[Tensor], payloads: Payloads, words: Sequence[int]) -> None:
        """`sign_vote` of the ranks whose tensor is not zero, with each tensor's word."""

    def scaled_sign_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Each of `outs` = the sum over ranks of what `scaled_sign_add` adds, over `divisor`."""

    def onebit_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Each of `outs` = the sum over ranks of what `onebit_add` adds, over `divisor`."""

    # Selected elements: "residual" ----------------------------------------------------------------

    def encode_indices(self, indices: Tensor, d: int, k: int, out: Tensor) -> None: ...

    def decode_indices(self, index: Tensor, d: int, k: int, count: int | None = None) -> Tensor: ...

    def topk_encode(self, source: Source, k: int, values: Tensor, index: Tensor) -> None: ...

    def threshold_encode(
        self, source: Source, threshold: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]: ...

    def adaq_encode(
        self,
        source: Source,
        ratio: float,
        slots: int,
        means: Tensor,
        counts: Tensor,
        index: Tensor,
        signs: Tensor,
    ) -> None: ...

    def adaq_add(
        self,
        out: Tensor,
        means: Tensor,
        counts: Tensor,
        index: Tensor,
        signs: Tensor,
        slots: int,
        alpha: float = 1.0,
    ) -> None: ...

    def randomk_encode(self, source: Source, word: int, scaled: bool, values: Tensor) -> None: ...

    def randomk_add(self, out: Tensor, values: Tensor, word: int, alpha: float = 1.0) -> None: ...

    def sparse_add(
        self, out: Tensor, values: Tensor, index: Tensor, alpha: float = 1.0, count: int | None = None
    ) -> None:
        """`out += alpha * decoded`; every index is checked before the first element is touched."""

    def sparse_combine_(self, outs: Sequence[Tensor], sent: Sequence[Sequence[Sent]], alpha: float) -> None:
        """Overwrite each of `outs` with alpha times the sum of what all ranks sent for it."""

    def sparse_zero_(self, out: Tensor, index: Tensor, k: int, count: int | None = None) -> None:
        """Set the elements at coded indices to zero."""

    def chunktopk_encode(
        self, source: Source, chunking: Chunking, positions: Tensor, codes: Tensor, means: Tensor
    ) -> None: ...

    def chunktopk_add(
        self,
        out: Tensor,
        positions: Tensor,
        codes: Tensor,
        means: Tensor,
        chunking: Chunking,
        alpha: float = 1.0,
    ) -> None: ...

    def dct_encode(self, source: Source, layout: DctLayout, positions: Tensor, values: Tensor) -> None: ...

    def dct_add(
        self, out: Tensor, payloads: Sequence[Sequence[Tensor]], layout: DctLayout, alpha: float = 1.0
    ) -> None:
        """`out += alpha * decoded`, of the sum of several ranks' coefficients; all are checked first."""

    # Deep gradient compression ------------------------------------------------------------------------

    def dgc_encode(
        self, source: Source, k: int, sampling: Sampling, values: Tensor, index: Tensor, count: Tensor
    ) -> None: ...

    def dgc_correct_(self, state: Correction, mu: float, nesterov: bool) -> None:
        """Momentum correction of the clipped gradient (Lin 2018, equations 4 and 5)."""

    def dgc_undo_(self, state: Correction, mu: float, nesterov: bool) -> None:
        """Undo `dgc_correct_`, up to rounding. With mu = 0 the old momentum has no influence and becomes 0."""

    def dgc_step_(
        self,
        states: Sequence[Correction],
        mu: float,
        nesterov: bool,
        samplings: Sequence[Sampling],
        payloads: Sequence[Sequence[Tensor]],
    ) -> Iterator[bool]:
        """`dgc_correct_`, and `dgc_encode` of the new `v`, complete until `dgc_commit_`; one state per `next`.

        Yields False if a gradient is not finite or reaches its limit: `m` and `v` are then restored, up to rounding.
        """

    def dgc_commit_(self, vs: Sequence[Tensor], ms: Sequence[Tensor] | None, sent: Sequence[Sent]) -> None:
        """Remove sent elements from each `v`, and zero their momentum (masking, section 3.2) unless `ms` is None."""

    def dgc_dense_(
        self, means: Sequence[Tensor], momenta: Sequence[Tensor], mu: float, nesterov: bool
    ) -> list[bool]:
        """Momentum of dense parameters, after the average; if that is not finite, returns False and changes nothing."""

    # Low rank: factors p (n, r) and q (r, m) of the matrix e + g --------------------------------------

    def project_rows(self, e: Tensor, g: Tensor, q: Tensor) -> tuple[Tensor, bool]:
        """(e + g) qᵀ, of shape (n, r); and, on the host, False if a magnitude of g or e + g reaches `limits.LARGE`.

        It may be False for a sum of smaller ones, too.
        """

    def project_columns(self, e: Tensor, g: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """pᵀ (e + g), of shape (r, m); and the same as `project_rows`."""

    def settle_factors(
        self, e: Tensor, g: Tensor, p: Tensor, q: Tensor, out: Tensor | None, p_mean: Tensor, q_mean: Tensor
    ) -> None:
        """e = (e + g) - p q; then out = p_mean q_mean, where `out` may be the memory of `g`."""

    def expand_factors(self, p: Tensor, q: Tensor, out: Tensor) -> None:
        """out = p q."""

    def orthonormal_rows(self, batch: Tensor) -> Tensor:
        """Orthonormal rows with the span of the rows of each matrix (rank, n), rank <= n; may overwrite `batch`."""

    def unit_rows_(self, rows: Tensor) -> bool | Tensor:
        """Divide each row by its largest magnitude; returns False if a row is zero, which stays zero (on a device: a tensor)."""
