"""Methods whose kernel forms the compensated gradient, encodes it and writes the residual in one pass."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from .. import kernels
from ..key import Key
from .base import Codec, Context, Payload


class FusedCodec(Codec):
    """A codec of fixed size with one encoding kernel, `_fused`."""

    def _fused(
        self,
        kernel: ModuleType,
        x: Tensor,
        g: Tensor | None,
        beta: float,
        gamma: float,
        ef: bool,
        key: Key,
        out: Payload,
    ) -> None:
        """Encode x, or beta * x + gamma * g, into `out`; with `ef`, leave the residual in x."""
        raise NotImplementedError

    def _encode(self, x: Tensor, key: Key, out: Payload | None) -> Payload:
        payload = self.allocate(x.numel(), x.dtype, x.device) if out is None else out
        self._fused(kernels.of(x), x, None, 1.0, 1.0, False, key, payload)
        return payload

    def encode_residual_(
        self,
        tensor: Tensor,
        grad: Tensor | None,
        key: Key,
        *,
        beta: float = 1.0,
        gamma: float = 1.0,
        out: Payload | None = None,
    ) -> tuple[Payload, Context]:
        payload = self.allocate(tensor.numel(), tensor.dtype, tensor.device) if out is None else out
        if tensor.numel():
            self._fused(kernels.of(tensor), tensor, grad, beta, gamma, True, key, payload)
        return payload, Context(tensor.shape, tensor.dtype, key)
