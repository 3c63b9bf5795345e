"""The transaction of a bucket: state changes between encoding and the step's verdict."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload
from ..errors import ConfigError, PeerError
from ..key import Key
from ..memory import overflow
from ..memory.base import Memory, NotFinite, Pending, Piece
from ..pipeline.frame import FAILED, NONFINITE, UNUSED, USED
from ..transport import Transport


class BucketTransaction:
    """Begins the transactions of a bucket's pieces, and later commits or aborts each exactly once.

    After a failed rank left the device waiting for it (`Transport.blocked`), nothing is aborted: that would wait, too.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.errors: list[Exception] = []
        self._open: dict[int, tuple[Memory, Pending]] = {}
        self._all: dict[int, Pending] = {}

    def begin(
        self,
        place: int,
        memory: Memory,
        compressor: Compressor,
        grad: Tensor,
        key: Key,
        out: Payload | None,
        used: bool = True,
        known_ordinary: bool = False,
    ) -> int:
        """Encode one piece; returns its flag. A failure is stored, so that it can be reported to every rank."""
        try:
            result: Pending | Exception
            if memory.checks_finite:
                (result,) = memory.begin_all([(grad, key, out)], compressor)
            elif memory.watches(key.name) or not (known_ordinary or ordinary(grad)):
                result = overflow.begin(memory, grad, key, compressor, out)
            else:
                result = memory.begin(grad, key, compressor, out)
        except Exception as error:
            result = error
        return self._enter(place, memory, compressor, result, out, used)

    def begin_all(
        self,
        places: Sequence[int],
        memory: Memory,
        compressor: Compressor,
        pieces: Sequence[Piece],
        used: Sequence[bool],
        known_ordinary: bool = False,
    ) -> list[int]:
        """`begin` for all pieces of a bucket; returns their flags."""
        if not memory.checks_finite:
            return [
                self.begin(place, memory, compressor, *piece, one, known_ordinary)
                for place, piece, one in zip(places, pieces, used)
            ]
        results = memory.begin_all(pieces, compressor)
        flags: list[int] = []
        try:
            for place, result, (_, _, out), one in zip(places, results, pieces, used, strict=True):
                flags.append(self._enter(place, memory, compressor, result, out, one))
        except BaseException:
            entered = {id(pending) for pending in self._all.values()}
            memory.abort_all([result for result in results if id(result) not in entered])
            raise
        return flags

    def _enter(
        self,
        place: int,
        memory: Memory,
        compressor: Compressor,
        result: Pending | Exception,
        out: Payload | None,
        used: bool,
    ) -> int:
        if isinstance(result, Pending):
            self.add(place, memory, result)
            try:
                if out is not None and result.payload is not out:
                    _fill(out, result.payload, compressor)
            except Exception as error:
                result = error
        if isinstance(result, NotFinite):
            for tensor in out or ():
                tensor.zero_()
            return NONFINITE
        if isinstance(result, Exception):
            self.errors.append(result)
            return FAILED
        return USED if used else UNUSED

    def add(self, place: int, memory: Memory, pending: Pending) -> None:
        self._open[place] = (memory, pending)
        self._all[place] = pending

    def pending(self, place: int) -> Pending:
        return self._all[place]

    def find(self, place: int) -> Pending | None:
        """The piece, unless its encoding has failed."""
        return self._all.get(place)

    def settle(self, place: int, commit: bool) -> None:
        """Commit or abort one piece, if it is open."""
        entry = self._open.pop(place, None)
        if entry is not None:
            memory, pending = entry
            memory.commit(pending) if commit else memory.roll_back(pending)

    def commit(self, places: Sequence[int]) -> None:
        """Commit open pieces, all of one memory."""
        entries = [self._open.pop(place) for place in places]
        if entries:
            entries[0][0].commit_all([pending for _, pending in entries])

    def conclude(self, place: int, out: Tensor) -> None:
        """Commit one piece and write its result."""
        memory, pending = self._open.pop(place)
        memory.conclude(pending, out)

    def abort(self) -> None:
        """Abort all open pieces."""
        if self._transport.blocked:
            self._open.clear()
        for place in list(self._open):
            self.settle(place, commit=False)


def peer_errors(flags: Sequence[int], who: str = "another rank") -> list[Exception]:
    """The error of this rank when a flag says that `who` failed."""
    if FAILED not in flags:
        return []
    return [
        PeerError(
            f"{who} could not compress its gradients and says why in its own log; the step was given up on every rank."
        )
    ]


def joined(flags: Sequence[int], finite: Tensor | None) -> Tensor:
    """Flags known on the host, with what is known on the device alone: which segments are finite."""
    known = torch.tensor(flags, dtype=torch.uint8)
    if finite is None:
        return known
    known = known.to(finite.device, non_blocking=True)
    return torch.where(finite, known, known.clamp(min=NONFINITE))


def _fill(slots: Payload, payload: Payload, compressor: Compressor) -> None:
    """Copy a payload into the slots of a frame, unless its compressor has written it there."""
    if all(slot.data_ptr() == part.data_ptr() for slot, part in zip(slots, payload)):
        return
    found = [(part.dtype, part.numel()) for part in payload]
    if found != [(slot.dtype, slot.numel()) for slot in slots]:
        raise ConfigError(
            f"{type(compressor).__name__} made a payload of {found}, but its spec() says "
            f"{[(slot.dtype, slot.numel()) for slot in slots]}; make them agree, or let spec() return None."
        )
    for slot, part in zip(slots, payload):
        slot.copy_(part.reshape(-1))


def ordinary(tensor: Tensor) -> bool:
    """Whether all elements are finite and not so large that state may overflow."""
    return tensor.numel() == 0 or kernels.of(tensor).ordinary(tensor)


def finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor Inf."""
    return tensor.numel() == 0 or bool(kernels.of(tensor).all_finite(tensor))
