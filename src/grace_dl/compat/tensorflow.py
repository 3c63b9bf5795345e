"""User-defined compressors, memories and communicators written with TensorFlow operations.

GRACE computes with PyTorch tensors. These classes convert them for user code, which runs eagerly, and
convert its results back.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..compressor.base import Compressor as CoreCompressor
from ..compressor.base import Payload
from ..key import Key
from ..memory.base import Memory as CoreMemory
from ..memory.base import Pending
from ..transport import Transport
from . import bases, communicators


def _lend(tensor: Tensor) -> Any:
    """A TensorFlow tensor with its own memory."""
    from ..integrations.tensorflow.tensors import to_tensorflow

    return to_tensorflow(tensor.detach().clone())


def _take(tensor: Any) -> Tensor:
    """A PyTorch tensor with its own memory."""
    import tensorflow as tf

    from ..integrations.tensorflow.tensors import to_torch

    return to_torch(tf.convert_to_tensor(tensor)).clone()


class Compressor(bases.Compressor):
    """A compressor whose `compress` and `decompress` work on TensorFlow's tensors."""

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Any]:
        tensors, ctx = self.compress(_lend(tensor), key.name)
        return [_take(part) for part in tensors], ctx

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Any) -> None:
        decoded = [self._lent(payload, ctx) for payload in payloads]
        out.copy_(_take(self.aggregate(decoded) if len(decoded) > 1 else decoded[0]).view_as(out))
        self.finish_(out, len(payloads))

    def _decoded(self, payload: Payload, ctx: Any) -> Tensor:
        return _take(self._lent(payload, ctx))

    def _lent(self, payload: Payload, ctx: Any) -> Any:
        return self.decompress([_lend(part) for part in payload], ctx)


class Memory(bases.Memory):
    """A memory whose `compensate` and `update` work on TensorFlow's tensors."""

    @abc.abstractmethod
    def update(self, tensor: Any, name: str, compressor: Any, tensor_compressed: Any, ctx: Any) -> Any:
        """Record what of `tensor`, as compensated, was not sent; the operations it returns have run already."""

    @staticmethod
    def init_var(initial_value: Any) -> Any:
        """A variable for state."""
        import tensorflow as tf

        return tf.Variable(initial_value, trainable=False)

    def begin(
        self, grad: Tensor, key: Key, compressor: CoreCompressor, out: Payload | None = None
    ) -> Pending:
        compensated = _take(self.compensate(_lend(grad), key.name))
        payload, ctx = compressor.encode(compensated, key, out)
        return Pending(key, compressor, grad, payload, ctx, compensated)

    def commit(self, pending: Pending) -> None:
        assert pending.compensated is not None
        compressor = pending.compressor
        lent = compressor if isinstance(compressor, Compressor) else _Lent(compressor)
        tensors = [_lend(part) for part in pending.payload]
        self.update(_lend(pending.compensated), pending.key.name, lent, tensors, pending.ctx)

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        return {
            key: {name: _take(tensor) for name, tensor in value.items()}
            for key, value in vars(self).items()
            if isinstance(value, dict) and key != "state"
        }

    def _restored(self, tensor: Tensor) -> Any:
        return self.init_var(_lend(tensor))


class Communicator(communicators.Communicator):
    """Base of user-defined communicators for TensorFlow: define `send_receive(tensors, ctx)`."""

    def __init__(self, compressor: Any, memory: Any = None, world_size: int | None = None) -> None:
        super().__init__(compressor, memory, world_size)
        if not isinstance(compressor, Compressor):
            self.compressor = _Lent(compressor, self._compress_with)
        if not isinstance(memory, Memory):
            self.memory = _LentMemory(self.memory)

    def _start(self, tensor: Tensor, name: str, transport: Transport) -> tuple[Callable[[], Tensor], int]:
        self._transport, before = transport, self._sent
        result = self.step(_lend(tensor), name)
        return lambda: _take(result), self._sent - before

    def _size(self, part: Any) -> int:
        return int(part.shape.num_elements()) * int(part.dtype.size)


class _Lent:
    """A compressor of PyTorch's tensors, called with TensorFlow's."""

    def __init__(
        self,
        core: CoreCompressor,
        compress: Callable[[CoreCompressor, Tensor, str], tuple[Payload, Any]] | None = None,
    ) -> None:
        self.core, self.average = core, core.average
        self._compress = compress

    def compress(self, tensor: Any, name: str) -> tuple[list[Any], Any]:
        given = _take(tensor)
        encoded = (
            self.core.compress(given, name)
            if self._compress is None
            else self._compress(self.core, given, name)
        )
        return [_lend(part) for part in encoded[0]], encoded[1]

    def decompress(self, tensors: Sequence[Any], ctx: Any) -> Any:
        return _lend(self.core.decompress([_take(part) for part in tensors], ctx))

    def aggregate(self, tensors: Sequence[Any]) -> Any:
        return sum(tensors[1:], tensors[0])


class _LentMemory:
    """A memory of PyTorch's tensors, called with TensorFlow's."""

    def __init__(self, core: CoreMemory) -> None:
        self._core = core

    def compensate(self, tensor: Any, name: str) -> Any:
        return _lend(self._core.compensate(_take(tensor), name))

    def update(self, tensor: Any, name: str, compressor: Any, tensors: Sequence[Any], ctx: Any) -> list[Any]:
        beneath = compressor.core if isinstance(compressor, _Lent) else compressor
        self._core.update(_take(tensor), name, beneath, [_take(part) for part in tensors], ctx)
        return []
