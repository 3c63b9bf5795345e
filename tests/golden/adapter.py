"""All that the golden tests use of the library: build a method, step it, read its state, record what it sends.

A change of the library's API is followed here and nowhere else in this folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from contract.wire import Wrapped
from golden.cases import Case
from grace_dl import catalog
from grace_dl.algebra.named import build
from grace_dl.compressor.base import working
from grace_dl.handle import ManualHandle
from grace_dl.integrations.attach import manual
from grace_dl.key import Key
from grace_dl.transport.base import Handle, Transport
from grace_dl.transport.simulated import simulated


def method_names() -> list[str]:
    """All built-in methods."""
    return catalog.builtin_names()


def run(
    case: Case, grads: Sequence[Sequence[Mapping[str, Tensor]]]
) -> tuple[list[list[dict[str, Tensor]]], list[list[Tensor]], list[list[Tensor]]]:
    """Step `grads[rank][step][name]` on simulated ranks.

    Returns results, by rank, step and name; and for each rank its state tensors after the last step, in any order,
    and the tensors it handed to collectives, in order.
    """
    world = simulated(len(grads), timeout=60)
    recorders = [Recorder(transport) for transport in world]
    graces = [_build(case, recorder) for recorder in recorders]

    def steps(transport: Transport) -> list[dict[str, Tensor]]:
        grace = graces[transport.rank]
        return [
            {name: grace.step(grad.clone(), name) for name, grad in of_step.items()}
            for of_step in grads[transport.rank]
        ]

    results = world.run(steps)
    return results, [_tensors(grace.state_dict()) for grace in graces], [r.sent for r in recorders]


def encode(
    case: Case, tensor: Tensor, name: str, seed: int, step: int, rank: int
) -> tuple[list[Tensor], Tensor]:
    """The payload of one tensor without memory or exchange, and what a peer decodes from it."""
    info = catalog.info(case.method)
    own = {p.name for p in info.parameters}
    compressor = info.cls(**{name: value for name, value in _settings(case).items() if name in own})
    payload, ctx = compressor.encode(working(tensor), Key(name, seed=seed, step=step, rank=rank))
    return [part.clone() for part in payload], compressor.decompress(payload, ctx)


class Recorder(Wrapped):
    """Hands everything on, and keeps a copy of what this rank contributes to each collective.

    The comparison of settings (`agree`) is left out: its text is no part of a method's arithmetic.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.sent: list[Tensor] = []

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        self.sent.append(tensor.clone())
        return super().allreduce(tensor, channel)

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        self.sent.append(tensor.clone())
        return super().allgather(out, tensor, channel)

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        self.sent.append(tensor.clone())
        return super().alltoall(out, tensor, out_splits, in_splits, channel)

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        if root == self.rank:
            self.sent.append(tensor.clone())
        return super().broadcast(tensor, root, channel)


def _build(case: Case, transport: Transport) -> ManualHandle:
    with warnings.catch_warnings():  # a pair that warns is still permitted
        warnings.simplefilter("ignore")
        method = build(
            case.method,
            memory=case.memory,
            communicator=case.communicator,
            **_settings(case),
            **case.memory_settings,
        )
    return manual(method, transport=transport)


_RENAMED = {"compress_ratio": "ratio", "warmup_epochs": "warmup_stages"}
"""Settings whose names have changed since the cases were recorded."""


def _settings(case: Case) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in case.settings.items()}


def _tensors(state: Any) -> list[Tensor]:
    """All tensors in a nested state, wherever they are."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, Mapping):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return [tensor for item in state for tensor in _tensors(item)]
    return []
