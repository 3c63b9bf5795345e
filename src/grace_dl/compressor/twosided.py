"""Methods that send signs, decoded to one value where negative and another elsewhere.

Those values are known only after all elements were read, so taking what was sent out of the residual would cost a second
pass over memory. It waits instead for the next step, which reads the residual anyway: the two values are `owed` until
then.
"""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from .. import kernels
from ..key import Key
from .base import Codec, Context, Payload


class TwoSidedCodec(Codec):
    """A codec of fixed size with one encoding kernel, `_sides`."""

    def _sides(
        self,
        kernel: ModuleType,
        x: Tensor,
        g: Tensor | None,
        beta: float,
        gamma: float,
        owed: Tensor | None,
        out: Payload,
    ) -> None:
        """Encode x, or beta * x + gamma * g, into `out`.

        With `owed`, x settled with it (`kernels/reference/signs.py`) takes the place of x; x becomes what is encoded and `owed` what is sent of it.
        """
        raise NotImplementedError

    def _encode(self, x: Tensor, key: Key, out: Payload | None) -> Payload:
        payload = self.allocate(x.numel(), x.dtype, x.device) if out is None else out
        self._sides(kernels.of(x), x, None, 1.0, 1.0, None, payload)
        return payload

    def encode_owing_(
        self,
        tensor: Tensor,
        owed: Tensor,
        grad: Tensor,
        key: Key,
        *,
        beta: float = 1.0,
        gamma: float = 1.0,
        out: Payload | None = None,
    ) -> tuple[Payload, Context]:
        payload = self.allocate(tensor.numel(), tensor.dtype, tensor.device) if out is None else out
        if tensor.numel():
            self._sides(kernels.of(tensor), tensor, grad, beta, gamma, owed, payload)
        return payload, Context(tensor.shape, tensor.dtype, key)
