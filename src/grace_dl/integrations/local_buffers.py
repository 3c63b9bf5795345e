"""Averages of a model's floating-point buffers, such as the statistics of batch normalization, between local steps."""

from __future__ import annotations

from torch import nn

from ..algebra.named import build
from ..session import Session
from ..telemetry import Stats
from ..transport import Transport
from .exchange import average


class LocalBuffers:
    """The buffers of a model, and their averages of the last exchange. They are not compressed, and no exchanges of the method."""

    def __init__(self, model: nn.Module, transport: Transport) -> None:
        self.live = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._session = Session(build("none"), transport) if self.live else None
        self.anchor = [buffer.clone() for buffer in self.live]

    def keep(self) -> None:
        """Take the present values as those of the last exchange."""
        for kept, buffer in zip(self.anchor, self.live):
            kept.copy_(buffer)

    def average(self) -> None:
        """Average over ranks; all ranks call it. If a value is not finite on some rank, all take those of the last exchange."""
        if self._session is None:
            return
        finite, averaged = average(
            self._session, "buffers", {f"buffer.{place}": buffer for place, buffer in enumerate(self.live)}
        )
        for place, buffer in enumerate(self.live):
            buffer.copy_(averaged[f"buffer.{place}"].view if finite else self.anchor[place])
        self.keep()

    @property
    def stats(self) -> Stats:
        return Stats() if self._session is None else self._session.stats

    def release(self) -> None:
        """Drop the plans of the exchange."""
        if self._session is not None:
            self._session.forget_buckets()
