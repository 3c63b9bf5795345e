"""The original GRACE's communicators: objects that carry a method, and the base class of user-defined ones.

`Allgather(TopKCompressor(0.3), ResidualMemory(), world_size)` carries `grace.topk(0.3)`: pass it as `grace=` to Horovod's
functions or to `grace.attach`, or call `step` in a hand-written loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import catalog, registry
from ..algebra.base import Single
from ..algebra.custom import custom
from ..algebra.named import build
from ..compressor.base import Compressor, Context, working
from ..compressor.codec import Codec
from ..errors import ConfigError
from ..handle import Handle, ManualHandle
from ..integrations.attach import attach, manual
from ..key import Key
from ..memory.base import Memory
from ..memory.none import NoneMemory
from ..memory.residual import ResidualMemory
from ..registry import MethodInfo, parameters
from ..transport import Transport, detect
from . import bases
from .exchange import Checked, OwnExchange, Ranks, gathered, summed

_HOOKS = ("step", "send_receive", "send_step", "receive_step", "async_send", "wait_receive")
"""Methods that a user-defined subclass may define."""


class Communicator:
    """A compressor, a memory and an exchange; subclass it to define your own exchange.

    A subclass defines `send_receive(tensors, name, ctx)`, or without `name`; or the pair `async_send(tensors, name)` and
    `wait_receive(handles, ctx)`. Its compressor and memory are then used directly, not copied.
    """

    way: ClassVar[str] = ""

    def __init__(
        self, compressor: Compressor, memory: Memory | None = None, world_size: int | None = None
    ) -> None:
        self._set_up(compressor, memory, world_size)

    @classmethod
    def carrying(
        cls, method: Single, compressor: Compressor, memory: Memory, world_size: int | None
    ) -> Communicator:
        """A communicator that carries `method`, built from this compressor and memory."""
        self = cls.__new__(cls)
        self._set_up(compressor, memory, world_size, method=method)
        return self

    def _set_up(
        self,
        compressor: Any,
        memory: Any,
        world_size: int | None,
        rank: int | None = None,
        method: Single | None = None,
    ) -> None:
        self.compressor: Any = compressor
        self._own = self._exchanges_itself()
        _check(compressor, memory)
        self.memory: Any = NoneMemory() if memory is None and self._own else memory
        self.world_size = world_size
        self.handles: dict[Any, Any] = {}
        """Handles shared by `step` and by the tapes of a TensorFlow loop."""
        self._steps: dict[str, int] = {}
        self._transport: Transport | None = None
        self._sent = 0
        self._ranks = Ranks(world_size, rank)
        self.method: Single = self._method(method)
        """The method it carries; attach it to any number of models."""

    def _exchanges_itself(self) -> bool:
        """Whether the exchange is user-defined (`send_receive` or the like), not a communicator of `grace_dl`."""
        builtin = next(cls for cls in type(self).__mro__ if cls.__module__.startswith(f"{__package__}."))
        own = any(getattr(type(self), hook) is not getattr(builtin, hook) for hook in _HOOKS)
        if not own and not self.way:
            raise TypeError(
                f"{type(self).__name__} must define send_receive(tensors, name, ctx), or async_send and wait_receive"
            )
        # A user-defined exchange may sum the payloads of a user-defined compressor.
        return own or (self.way == "allreduce" and isinstance(self.compressor, bases.Compressor))

    def _method(self, given: Single | None) -> Single:
        if self._own:
            _check_own(self.compressor, self.memory)
            label = f"{self.compressor!r} with {self.memory!r} through {type(self).__name__}"
            return OwnExchange(self._start, self.compressor, self.memory, self._ranks, label)
        method = given or method_of(self.compressor, self.memory, self.way)
        expected = (self._ranks.world_size, self._ranks.rank) != (None, None)
        return Checked(method, self._ranks) if expected else method

    # Steps --------------------------------------------------------------------------------------------

    def step(self, tensor: Any, name: str) -> Any:
        """Exchange one gradient with all ranks; returns the result."""
        if not self._own:
            if isinstance(tensor, Tensor):
                return self._handle().step(tensor, name)
            return self._tensorflow_step(tensor, name)
        if type(self).async_send is not Communicator.async_send:
            return self.receive_step(*self.send_step(tensor, name))
        tensors, ctx = self._encode(tensor, name)
        takes_name = len(inspect.signature(self.send_receive).parameters) > 2
        return self.send_receive(tensors, name, ctx) if takes_name else self.send_receive(tensors, ctx)

    def send_step(self, tensor: Tensor, name: str) -> tuple[Any, Any]:
        """The first half of a step; pass what it returns to `receive_step`."""
        if self._own:
            tensors, ctx = self._encode(tensor, name)
            return self.async_send(tensors, name), ctx
        return self._handle().session.send(tensor, name)

    def receive_step(self, handles: Any, ctx: Any) -> Tensor:
        """The second half of a step; returns the result."""
        if self._own:
            return self.wait_receive(handles, ctx)
        return self._handle().session.receive(handles, ctx)

    def attach(
        self,
        target: Any,
        scaler: Any = None,
        *,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
        passes: int = 1,
    ) -> Handle:
        """`grace.attach(target, self.method)`."""
        return attach(
            target, self.method, named_parameters=named_parameters, scaler=scaler, backward_passes=passes
        )

    def _handle(self) -> ManualHandle:
        found = self.handles.get("step")
        if found is None or found.closed:
            found = self.handles["step"] = manual(self.method)
        return found

    def _tensorflow_step(self, tensor: Any, name: str) -> Any:
        from ..integrations.tensorflow.options import tape_handle

        _, (result,) = tape_handle(self, {})([tensor], [SimpleNamespace(name=name)])
        return result

    # Defined or used by a user-defined exchange -------------------------------------------------------

    def send_receive(self, *arguments: Any, **keywords: Any) -> Any:
        """Exchange the payload of one gradient, `(tensors, name, ctx)`; returns the result."""
        tensors, *_, ctx = (*arguments, *keywords.values())
        return self._received(tensors, ctx)

    def async_send(self, tensors: Any, name: str) -> Any:
        """Start the exchange of one gradient's payload; returns the argument of `wait_receive`."""
        return tensors

    def wait_receive(self, handles: Any, ctx: Any) -> Any:
        """Wait for `async_send`; returns the result."""
        return self._received(handles, ctx)

    def _received(self, tensors: Any, ctx: Any) -> Tensor:
        """Decode the sum of all ranks' payloads, or each of them, and average unless the compressor disables it."""
        transport, compressor = self._connected(), self.compressor
        divide = transport.size if compressor.average else 1
        if self.way == "allreduce":
            totals = [total / divide if divide > 1 else total for total in summed(transport, tensors)]
            return compressor.decompress(totals, ctx)
        device = tensors[0].device if len(tensors) else torch.device("cpu")
        parts = gathered(transport, tensors, device)
        total = compressor.aggregate([compressor.decompress(part, ctx) for part in parts])
        return total / divide if divide > 1 else total

    def _encode(self, tensor: Any, name: str) -> tuple[Any, Any]:
        tensor = self.memory.compensate(tensor, name)
        tensors, ctx = self._compress_with(self.compressor, tensor, name)
        self.memory.update(tensor, name, self.compressor, tensors, ctx)
        self._sent += sum(map(self._size, tensors))
        return tensors, ctx

    def _size(self, part: Any) -> int:
        return int(part.nbytes)

    def _compress_with(self, compressor: Any, tensor: Any, name: str) -> tuple[Any, Any]:
        if not isinstance(compressor, Codec) or bases.by_functions(compressor) is not compressor:
            return compressor.compress(tensor, name)
        # Random draws of the built-in compressors differ by step and rank.
        step = self._steps[name] = self._steps.get(name, -1) + 1
        transport = self._connected()
        key = Key(name, 0, step, transport.rank, transport.size, self.way == "allreduce")
        payload, _ = compressor.encode(working(tensor), key)
        return payload, Context(tensor.shape, tensor.dtype, key)

    def _connected(self) -> Transport:
        if self._transport is None:
            self._transport = detect()
            self._ranks.check(self._transport)
        return self._transport

    def _start(self, tensor: Tensor, name: str, transport: Transport) -> tuple[Callable[[], Tensor], int]:
        self._transport, before = transport, self._sent
        halves = (type(self).send_step, type(self).async_send)
        if halves != (Communicator.send_step, Communicator.async_send):
            handles, ctx = self.send_step(tensor, name)
            return lambda: self.receive_step(handles, ctx), self._sent - before
        result = self.step(tensor, name)
        return lambda: result, self._sent - before

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.compressor!r}, {self.memory!r})"


class Allreduce(Communicator):
    """Sums payloads by all-reduce."""

    way = "allreduce"


class Allgather(Communicator):
    """Gathers the payloads of all ranks on each.

    >>> from grace_dl.dist.compressor.topk import TopKCompressor
    >>> Allgather(TopKCompressor(0.3)).method
    grace.topk(ratio=0.3, communicator='allgather')
    """

    way = "allgather"


class Broadcast(Communicator):
    """Broadcasts the payloads, one rank at a time. rank: checked if given."""

    way = "broadcast"
    rank: int | None = None

    def __init__(
        self,
        compressor: Compressor,
        memory: Memory | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        self._set_up(compressor, memory, world_size, rank)
        self.rank = rank


class AllToAll(Communicator):
    """Every slice of a gradient is combined by its owner, then the results are gathered."""

    way = "alltoall"


COMMUNICATORS: dict[str, type[Communicator]] = {
    kind.way: kind for kind in (Allreduce, Allgather, Broadcast, AllToAll)
}


def _check(compressor: Any, memory: Any) -> None:
    if not isinstance(compressor, Compressor):
        raise ConfigError(
            f"compressor={compressor!r} is no compressor object; pass one, such as TopKCompressor(0.3), or derive your class "
            "from grace_dl.dist.Compressor."
        )
    if memory is not None and not isinstance(memory, Memory):
        raise ConfigError(
            f"memory={memory!r} is no memory object; pass one, such as ResidualMemory(), or derive your class from "
            "grace_dl.dist.Memory."
        )


def _check_own(compressor: Compressor, memory: Memory) -> None:
    if compressor.multi_round:
        raise ConfigError(
            f"{type(compressor).__name__} exchanges in rounds of its own, which no other communicator can run; use Allreduce."
        )
    if not isinstance(memory, (NoneMemory, ResidualMemory, bases.Memory)):
        raise ConfigError(
            f"{type(memory).__name__} works with the built-in communicators only; use ResidualMemory or one of your own."
        )


def method_of(compressor: Compressor, memory: Memory | None, way: str) -> Single:
    """The method for a compressor and a memory object, with a communicator by name."""
    way = "allreduce" if compressor.multi_round else way
    compressor = bases.by_functions(compressor)
    info, name = _method_info(compressor), None if memory is None else _memory_name(memory)
    if info is None or (memory is not None and name is None):
        return custom(compressor, memory, way)
    settings = {p.name: getattr(compressor, p.name) for p in info.parameters}
    if compressor.average != info.cls(**settings).average:
        # The result is a sum, but parameters sent dense are averaged.
        return custom(compressor, memory, way, dense_below=0)
    if memory is not None and name is not None and info.memory(name) == name:
        for parameter in parameters(catalog.MEMORIES[name]):
            value = getattr(memory, parameter.name)
            if settings.setdefault(parameter.name, value) != value:
                raise ConfigError(
                    f"{type(compressor).__name__} has {parameter.name}={settings[parameter.name]!r}, but "
                    f"{type(memory).__name__} has {parameter.name}={value!r}; give both the same."
                )
    if "rank" in settings:
        settings["rank"] = _rank(compressor, memory)
    only = catalog.defaults_of(info) == ((1, way),)
    return build(info.name, memory=name, communicator=None if only else way, **settings)


def _method_info(compressor: Compressor) -> MethodInfo | None:
    """The registered method of this compressor; None for a class that overrides it."""
    cls = _beneath(type(compressor))
    return next((info for info in registry.methods.values() if info.cls is cls), None)


def _memory_name(memory: Memory) -> str | None:
    cls = _beneath(type(memory))
    return next((name for name, kind in catalog.MEMORIES.items() if kind is cls), None)


def _beneath(cls: type) -> type:
    """The class behind a class of this layer; any other class is returned unchanged."""
    return next(base for base in cls.__mro__ if not base.__module__.startswith(f"{__package__}."))


def _rank(compressor: Any, memory: Any) -> int:
    """PowerSGD's rank, which the original takes from the compressor or the memory."""
    given = {
        type(half).__name__: half._given
        for half in (compressor, memory)
        if getattr(half, "_given", None) is not None
    }
    if len(set(given.values())) > 1:
        raise ConfigError(f"the ranks of {' and '.join(given)} differ ({given}); give both the same.")
    return next(iter(given.values()), compressor.rank)
