"""The original GRACE's abstract classes, the bases of user-defined compressors and memories."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..compressor import base as compressor_base
from ..memory import base as memory_base


class Compressor(compressor_base.Compressor, abc.ABC):
    """Base of user-defined compressors: define `compress` and `decompress`, and `aggregate` to replace the sum.

    average: whether the result is divided by the number of ranks. tensors_size_are_same: accepted and ignored; sizes
    are exchanged if they may differ.
    """

    tensors_size_are_same: bool = True

    @abc.abstractmethod
    def compress(self, tensor: Any, name: str) -> tuple[Any, Any]:
        """Return the tensors to send, and a context that is not sent."""

    @abc.abstractmethod
    def decompress(self, tensors: Any, ctx: Any) -> Any:
        """Restore the input of `compress`, up to the compression error."""

    def aggregate(self, tensors: Sequence[Any]) -> Any:
        """Combine the decoded tensors of all ranks: their sum."""
        return sum(tensors[1:], tensors[0])

    def settings(self) -> dict[str, Any]:
        return plain(super().settings())


class ByFunctions(Compressor):
    """Wraps a user-defined subclass of a built-in compressor: its overrides are used instead of the fast paths."""

    def __init__(self, changed: Any) -> None:
        super().__init__(changed.average)
        self._changed = changed

    def compress(self, tensor: Any, name: str) -> tuple[Any, Any]:
        return self._changed.compress(tensor, name)

    def decompress(self, tensors: Any, ctx: Any) -> Any:
        return self._changed.decompress(tensors, ctx)

    def aggregate(self, tensors: Sequence[Any]) -> Any:
        return self._changed.aggregate(tensors)

    def settings(self) -> dict[str, Any]:
        return plain(self._changed.settings())

    def __repr__(self) -> str:
        return repr(self._changed)


def by_functions(compressor: compressor_base.Compressor) -> compressor_base.Compressor:
    """`compressor`, wrapped if its class overrides `compress`, `decompress` or `aggregate` of a built-in one."""
    if isinstance(compressor, Compressor) or not hasattr(compressor, "aggregate"):
        return compressor
    functions = [getattr(type(compressor), name) for name in ("compress", "decompress", "aggregate")]
    own = any(not function.__module__.startswith("grace_dl.") for function in functions)
    return ByFunctions(compressor) if own else compressor


class Memory(memory_base.Memory, abc.ABC):
    """Base of user-defined memories: define `compensate`, and `update` if there is state.

    Attributes that are dictionaries of tensors by parameter name, such as `residuals`, are saved with a handle's state.
    """

    roles = {"residuals": "residual"}

    def __new__(cls, *arguments: Any, **keywords: Any) -> Memory:
        # The original class had no constructor, so subclasses do not call one.
        self = super().__new__(cls)
        self.state = {}
        return self

    @abc.abstractmethod
    def compensate(self, tensor: Any, name: str) -> Any:
        """The gradient with what earlier steps did not send."""

    def update(self, tensor: Any, name: str, compressor: Any, tensor_compressed: Any, ctx: Any) -> Any:
        """Record what of `tensor`, as compensated, was not sent."""

    def residual(self, name: str) -> Tensor | None:
        found = self._tensors().get("residuals", {}).get(name)
        return found.detach() if isinstance(found, Tensor) else None

    def settings(self) -> dict[str, Any]:
        return plain(super().settings())

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        for attribute, tensors in self._tensors().items():
            for name, tensor in tensors.items():
                saved.setdefault(name, {})[attribute] = tensor.detach().clone()
        return saved

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_state_dict(state)
        own = {key: value for key, value in vars(self).items() if isinstance(value, dict) and key != "state"}
        for tensors in own.values():
            tensors.clear()
        for name, slots in self.state.items():
            for attribute in own.keys() & slots.keys():
                own[attribute][name] = self._restored(slots.pop(attribute))

    def _restored(self, tensor: Tensor) -> Any:
        return tensor

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """Attributes that hold tensors by parameter name."""
        return {
            key: value
            for key, value in vars(self).items()
            if isinstance(value, dict)
            and key != "state"
            and all(isinstance(t, Tensor) for t in value.values())
        }


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings only: other attributes of a user-defined class, such as tensors by name, differ between ranks."""
    return {
        name: value
        for name, value in settings.items()
        if isinstance(value, (int, float, str, tuple, type(None)))
    }
