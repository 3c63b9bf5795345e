"""The cost of encoding and decoding: lines in the number of tensors and elements.

A call on a bucket of t tensors and n elements, into which p payloads are decoded, costs

    encode = A + T·t + B·n
    decode = A' + T'·t + B'·n + p·(T"·t + B"·n)

with coefficients measured for each compressor and its memory on this machine (`codec_timing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..pipeline.outline import Load, Stage


class Line(NamedTuple):
    """Seconds per call, per tensor and element, and per tensor and element of each payload."""

    call: float = 0.0
    tensor: float = 0.0
    element: float = 0.0
    payload_tensor: float = 0.0
    payload_element: float = 0.0

    def seconds(self, load: Load) -> float:
        """
        >>> Line(1.0, 0.1, 0.001).seconds(Load(tensors=2, elements=100))
        1.3
        """
        if not load.tensors:
            return 0.0
        per_tensor = self.tensor + load.payloads * self.payload_tensor
        per_element = self.element + load.payloads * self.payload_element
        return self.call + per_tensor * load.tensors + per_element * load.elements


@dataclass(frozen=True)
class CodecCost:
    """The costs of one compressor with its memory."""

    encode: Line
    decode: Line
    bits: float = 32.0
    """Payload bits per element of a large tensor."""

    def before(self, stage: Stage) -> float:
        """Seconds of codec work of a stage."""
        return self.decode.seconds(stage.decode) + self.encode.seconds(stage.encode)

    def payload_bytes(self, numel: int) -> int:
        """Expected payload of a tensor, for methods whose payload size depends on the data."""
        return int(self.bits * numel / 8) + 8

    def scaled(self, factor: float) -> CodecCost:
        """The same codec on hardware that needs `factor` times as long."""
        return CodecCost(
            Line(*(factor * v for v in self.encode)), Line(*(factor * v for v in self.decode)), self.bits
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> CodecCost:
        try:
            return cls(
                Line(*map(float, saved["encode"])), Line(*map(float, saved["decode"])), float(saved["bits"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{saved!r} is no codec cost ({error!r}); measure anew with --fresh."
            ) from error


FREE = CodecCost(Line(), Line())
"""The cost of plain averaging by the engine."""


SHORTEST = 1e-9
"""Seconds that count for what a coarse clock did not see pass."""


def fit(loads: Sequence[Load], seconds: Sequence[float]) -> Line:
    """The line with non-negative coefficients that fits measurements best, in relative error.

    >>> loads = [Load(1, 1000), Load(1, 100_000), Load(50, 100_000), Load(4, 4000)]
    >>> [f"{v:.2g}" for v in fit(loads, [Line(2e-5, 1e-5, 1e-9).seconds(load) for load in loads])[:3]]
    ['2e-05', '1e-05', '1e-09']
    """
    several = len({load.payloads for load in loads}) > 1
    rows = []
    for (tensors, elements, payloads), took in zip(loads, seconds):
        row = [1.0, tensors, elements, *([payloads * tensors, payloads * elements] if several else [])]
        rows.append([value / max(took, SHORTEST) for value in row])
    return Line(*non_negative(rows, [1.0] * len(rows)))


def non_negative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Least squares with non-negative coefficients; tries every set of active columns, so use it for a few columns."""
    import itertools

    import torch

    a, b = torch.tensor(rows, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)
    scale = a.norm(dim=0).clamp_min(1e-300)
    a = a / scale
    best, found = float(b.square().sum()), torch.zeros(a.shape[1], dtype=torch.float64)
    for count in range(1, a.shape[1] + 1):
        for columns in itertools.combinations(range(a.shape[1]), count):
            part = a[:, columns]
            solved = torch.linalg.lstsq(part, b.unsqueeze(1), driver="gelsd").solution.squeeze(1)
            error = float((part @ solved - b).square().sum())
            if bool((solved >= 0).all()) and error < best - 1e-12:
                best, found = error, torch.zeros_like(found)
                found[list(columns)] = solved
    return [float(v) for v in found / scale]
