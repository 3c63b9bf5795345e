"""Launches of decoders of payloads with two parts: for one tensor, or for a bucket and the payloads of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..reference.combine import combine_each
from ..wire import Payloads
from .bucket import DTYPES, run_bucket, together
from .launch import TILE, beside, run, serves, tiles
from .programs import decoding as programs


class Format(NamedTuple):
    """A payload of two parts, decoded element by element."""

    decode: Any
    """The program that decodes elements (`programs.decoding`)."""
    reference: Callable[..., None]
    """Adds a decoded payload to tensors that the kernels do not support."""
    check: Callable[..., None]
    """Raises if parts do not fit a result; contents are checked on the host only (`check.shown`)."""
    block: int = 0
    levels: int = 0
    bits: int = 0
    second: Any = None
    """The dtype of the second part; None: that of the result."""

    def _constants(self) -> dict[str, Any]:
        return {"DECODE": self.decode, "BLOCK": self.block, "LEVELS": self.levels, "BITS": self.bits}

    def add(self, out: Tensor, first: Tensor, second: Tensor) -> None:
        """out += decoded."""
        if not serves(out):
            return self.reference(out, first, second)
        self.check(out, first, second)
        beside(out, first, second)
        n = out.numel()
        run(programs.add_decoded, tiles(n), out, out, first, second, n, TILE=TILE, **self._constants())

    def combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Each of `outs` = the sum over ranks of what `add` adds, over `divisor`."""
        if not together(outs):
            return combine_each(self.add, outs, payloads, divisor)
        for out, of_ranks in zip(outs, payloads):
            for first, second in of_ranks:
                self.check(out, first, second)
        constants = {"SECOND": self.second or DTYPES[outs[0].dtype], **self._constants()}
        run_bucket(programs.combine_decoded, outs, payloads, divisor, **constants)
