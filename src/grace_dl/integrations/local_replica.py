"""The parameters and buffers of one rank: how it starts with those of rank 0, and how it recovers when it has diverged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..digest import digest
from ..transport import Transport
from .exchange import broadcast
from .local_parameters import shard


class OwnValues:
    """What a rank held before it took the values of rank 0, kept until its first step.

    A run that resumes may load its model before it creates `LocalSteps`; what the rank has trained since the last exchange would be
    lost. Only tensors that differed from those of rank 0 are kept.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Tensor], transport: Transport) -> None:
        self._model, self._parameters = model, parameters
        self._replaced: dict[tuple[str, str], Tensor] = {}
        for key, tensor in self._live().items():
            own = _take_first(tensor, transport)
            if own is not None:
                self._replaced[key] = own

    def _live(self) -> dict[tuple[str, str], Tensor]:
        # Looked up each time: a model may move to another device, and modules assign new tensors to buffers.
        buffers = {("buffer", name): buffer.detach() for name, buffer in self._model.named_buffers()}
        return {("parameter", name): shard(p) for name, p in self._parameters.items()} | buffers

    def digest(self) -> str:
        """A digest of the present parameters of this rank."""
        return digest({name: shard(parameter) for name, parameter in self._parameters.items()})

    def put_back(self, wanted: Collection[str]) -> None:
        """Return to what this rank held, if the digest of its parameters is one of these; then keep it no longer."""
        if self._replaced:
            before = {n: self._replaced.get(("parameter", n), shard(p)) for n, p in self._parameters.items()}
            if digest(before) in wanted and self.digest() not in wanted:
                for key, tensor in self._live().items():
                    if key in self._replaced:
                        tensor.copy_(self._replaced[key])
        self.forget()

    def forget(self) -> None:
        """Free the memory."""
        self._replaced = {}


def _take_first(mine: Tensor, transport: Transport) -> Tensor | None:
    """Give a tensor the value of rank 0; returns its own if that was another."""
    if transport.size == 1 or not mine.numel():
        return None
    sent = mine.contiguous().clone()
    broadcast(transport, [_bytes(sent)])  # bytes, because not every engine can send every dtype
    if torch.equal(_bytes(sent), _bytes(mine)):
        return None
    own = mine.clone()
    mine.copy_(sent)
    return own


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a tensor, or of a contiguous copy of it."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def recover(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], anchor: Callable[[str], Tensor]
) -> None:
    """Free this rank of values that are not finite, after a round that was dropped.

    Parameters return to the anchor, those of other fragments too. State of the optimizer is discarded: with moments that are not finite
    every later step, and so every later round, would be lost.
    """
    for name, parameter in parameters.items():
        if not _finite(parameter):
            shard(parameter).copy_(anchor(name))
    broken = [name for name, p in parameters.items() if not _finite(optimizer.state.get(p))]
    for name in broken:
        _discard_state(optimizer, parameters[name])
    if broken:
        warnings.warn(
            f"a round of local steps was dropped, and on this rank the optimizer's state of {len(broken)} parameters (such as "
            f"{broken[0]!r}) is not finite; it is discarded, and their moments start anew. To keep it, skip optimizer.step() when a "
            "gradient is not finite.",
            stacklevel=2,
        )


def _discard_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    del optimizer.state[parameter]
    if isinstance(optimizer, torch.optim.Adagrad):
        # Unlike other optimizers it makes its state when it is created, in older releases only then.
        settings: dict[str, Any] = {
            name: optimizer.defaults.get(name) for name in ("initial_accumulator_value", "fused")
        }
        optimizer.state[parameter] = torch.optim.Adagrad([parameter], **settings).state[parameter]


def _finite(value: Any) -> bool:
    """Whether all floating-point tensors in a structure are finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(shard(value).isfinite().all())
    if isinstance(value, Mapping):
        return all(_finite(item) for item in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_finite(item) for item in value)
    return True
