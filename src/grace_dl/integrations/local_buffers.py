"""Averages of a model's floating-point buffers, such as the statistics of batch normalization, between local steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..algebra.named import build
from ..errors import ConfigError
from ..names import canonical
from ..session import Session
from ..telemetry import Stats
from ..transport import Transport
from .exchange import average

_AVERAGED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Buffers of 8 bits are quantized values or their scales."""


class LocalBuffers:
    """The buffers of a model, and their averages of the last exchange. They are not compressed, and no exchanges of the method.

    Buffers are looked up by name each time, because a module may assign new tensors to them.
    """

    def __init__(self, model: nn.Module, transport: Transport) -> None:
        self._model = model
        named = {name: buffer for name, buffer in model.named_buffers() if buffer.dtype in _AVERAGED}
        self._names = list(named)
        self._session = Session(build("none"), transport) if named else None
        self.anchor = [buffer.detach().clone() for buffer in named.values()]

    def live(self) -> list[Tensor]:
        """The present buffers, in the order of `anchor`; raises unless they are as they were on creation."""
        if not self._names:
            return []
        named = dict(self._model.named_buffers(remove_duplicate=False))
        found = [named.get(name) for name in self._names]
        for name, buffer, kept in zip(self._names, found, self.anchor):
            if buffer is None or (buffer.dtype, buffer.shape) != (kept.dtype, kept.shape):
                now = "gone" if buffer is None else f"{buffer.dtype} of shape {tuple(buffer.shape)}"
                raise ConfigError(
                    f"the buffer {canonical(name)!r} was {kept.dtype} of shape {tuple(kept.shape)} when LocalSteps was created and is "
                    f"now {now}; keep its dtype and shape, or create LocalSteps again after the change."
                )
        return [buffer.detach() for buffer in found if buffer is not None]

    def average(self) -> None:
        """Average over ranks; all ranks call it. A buffer that is not finite on some rank is that of the last exchange on all."""
        if self._session is None:
            return
        live = self.live()
        device = live[0].device
        broken = torch.stack([~buffer.isfinite().all().to(device) for buffer in live]).float()
        # A buffer that is not finite must not keep the others from being averaged.
        sent = {
            f"buffer.{place}": torch.zeros_like(buffer) if bad else buffer
            for place, (buffer, bad) in enumerate(zip(live, broken.tolist()))
        }
        _, averaged = average(self._session, "buffers", {**sent, "broken": broken})
        anywhere = averaged["broken"].view.tolist()
        for place, (buffer, bad) in enumerate(zip(live, anywhere)):
            buffer.copy_(self.anchor[place] if bad else averaged[f"buffer.{place}"].view)
        self.anchor = [buffer.clone() for buffer in live]

    @property
    def stats(self) -> Stats:
        return Stats() if self._session is None else self._session.stats

    def release(self) -> None:
        """Drop the plans of the exchange."""
        if self._session is not None:
            self._session.forget_buckets()
