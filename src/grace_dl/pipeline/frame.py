"""The layout of a bucket's payloads in one buffer, so that a bucket takes one collective.

A fixed frame has one flag byte per segment, then every payload tensor, each aligned to 8 bytes. All ranks know its size
from the layout alone. A varying frame (methods whose payload size depends on the data) carries its own lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..compressor.base import Payload, Spec
from ..errors import PayloadError

UNUSED, USED, NONFINITE, FAILED = range(4)
"""Flags of a segment: not reached by backward, ordinary, holds NaN or Inf, its rank raised an error."""

_DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
]


def align(count: int) -> int:
    return -(-count // 8) * 8


class FixedFrame:
    """The layout of payloads of known size."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = list(specs)
        self._places: list[list[tuple[int, int, torch.dtype]]] = []
        cursor = align(len(specs))
        for spec in specs:
            places = []
            for dtype, count in spec:
                places.append((cursor, dtype.itemsize * count, dtype))
                cursor += align(dtype.itemsize * count)
            self._places.append(places)
        self.nbytes = max(cursor, 8)

    def flags(self, frame: Tensor) -> Tensor:
        return frame[: len(self.specs)]

    def payloads(self, frame: Tensor) -> list[Payload]:
        """Views of `frame`, by segment."""
        return [
            [frame[start : start + size].view(dtype) for start, size, dtype in places]
            for places in self._places
        ]


def pack(flags: Sequence[int], payloads: Sequence[Payload | None], device: torch.device) -> Tensor:
    """A varying frame. A segment without a payload (flagged) is None."""
    header = [*flags]
    parts: list[Tensor] = []
    for payload in payloads:
        header.append(0 if payload is None else len(payload))
        for tensor in payload or ():
            header += [_DTYPES.index(tensor.dtype), tensor.numel()]
            parts.append(tensor)
    frame = torch.zeros(
        8 * (1 + len(header)) + sum(align(part.nbytes) for part in parts), dtype=torch.uint8, device=device
    )
    head = torch.tensor([len(header), *header], dtype=torch.int64)
    frame[: head.nbytes].copy_(head.view(torch.uint8))
    cursor = head.nbytes
    for part in parts:
        frame[cursor : cursor + part.nbytes].copy_(part.contiguous().view(-1).view(torch.uint8))
        cursor += align(part.nbytes)
    return frame


def unpack(frame: Tensor, segments: int, rank: int) -> tuple[list[int], list[Payload]]:
    """Parse flags and payloads of a varying frame from a peer, whose bytes are not trusted."""

    def broken(why: str) -> PayloadError:
        return PayloadError(
            f"the frame of rank {rank} ({frame.numel()} bytes, {segments} segments) is broken: {why}. "
            "Bytes were changed on the way, or that rank runs another version."
        )

    if frame.numel() < 8:
        raise broken("it is shorter than its header")
    count = int(frame[:8].view(torch.int64).item())
    if not 2 * segments <= count <= (frame.numel() // 8) - 1:
        raise broken(f"it says it has a header of {count} words")
    header = frame[8 : 8 * (1 + count)].view(torch.int64).tolist()
    flags, words = header[:segments], iter(header[segments:])
    cursor = 8 * (1 + count)
    payloads: list[Payload] = []
    try:
        for _ in range(segments):
            payload: Payload = []
            for _ in range(next(words)):
                code, numel = next(words), next(words)
                if not 0 <= code < len(_DTYPES):
                    raise broken(f"dtype code {code} is unknown")
                dtype = _DTYPES[code]
                size = numel * dtype.itemsize
                if numel < 0 or cursor + size > frame.numel():
                    raise broken(f"a tensor of {numel} elements reaches beyond its end")
                payload.append(frame[cursor : cursor + size].view(dtype))
                cursor += align(size)
            payloads.append(payload)
    except StopIteration:
        raise broken("its header ends too early") from None
    return flags, payloads


def shaped_like(payload: Payload, own: Sequence[Tensor]) -> Payload:
    """A peer's flat tensors, in the shapes of this rank's tensors; the first dimension may differ.

    >>> [tuple(part.shape) for part in shaped_like([torch.ones(6), torch.ones(1)], [torch.ones(2, 3), torch.tensor(1)])]
    [(2, 3), ()]
    """
    if len(payload) != len(own):
        return payload
    return [_shaped(part, mine.shape) for part, mine in zip(payload, own)]


def _shaped(part: Tensor, shape: torch.Size) -> Tensor:
    if part.numel() == math.prod(shape):
        return part.view(shape)
    row = math.prod(shape[1:])
    return part.view(-1, *shape[1:]) if row and part.numel() % row == 0 else part


def check_flags(flags: Sequence[int], rank: int) -> list[Exception]:
    """The error of a frame with invalid flags, if any."""
    for flag in (min(flags, default=USED), max(flags, default=USED)):
        if not UNUSED <= flag <= FAILED:
            return [
                PayloadError(
                    f"the frame of rank {rank} holds flag {flag}, which does not exist: broken bytes."
                )
            ]
    return []


class SumFrame:
    """The layout of payloads in a buffer of numbers that is summed over ranks.

    The last numbers are flags as ones and zeros, whose sums tell in any floating-point type whether a rank set one:
    for every segment whether it was used, for every segment whether it was not finite, and whether a segment failed.
    """

    def __init__(self, counts: Sequence[int], segments: int) -> None:
        self.counts = list(counts)
        self.payload = sum(counts)
        self._lanes = self.lane_count(segments)
        self.numel = self.payload + self._lanes

    def split(self, frame: Tensor) -> tuple[list[Tensor], Tensor]:
        """Views of the payloads and of the flags."""
        *payloads, flags = frame.split([*self.counts, self._lanes])
        return payloads, flags

    @staticmethod
    def lane_count(segments: int) -> int:
        return 2 * segments + 1

    @staticmethod
    def lanes(flags: Tensor) -> Tensor:
        """One rank's flags as they are summed."""
        return torch.cat([flags == USED, flags == NONFINITE, (flags == FAILED).any().view(1)])

    @staticmethod
    def read(sums: Sequence[float], ranks: int) -> list[int]:
        """The combined flags of all ranks.

        >>> SumFrame.read([2, 0, 1, 0, 0, 1, 0], ranks=2) == [USED, UNUSED, NONFINITE]
        True
        """
        for total in sums:
            # Sums of up to `ranks` ones: 16-bit floats round them, but not by a tenth.
            if not 0 <= total <= 1.1 * ranks:
                raise PayloadError(f"flags of {ranks} ranks add up to {total}: broken bytes.")
        half = len(sums) // 2
        joint = [
            NONFINITE if bad else USED if used else UNUSED for used, bad in zip(sums[:half], sums[half:-1])
        ]
        return [FAILED] * half if sums[-1] else joint
