"""Attaching to a model sharded by `fully_shard` (FSDP2), through its custom reduce-scatter.

FSDP calls the reduce-scatter of a module as soon as backward has left it, in the same order on all ranks. The call
compresses the gradients, sends every rank its slices, and leaves zeros as its result: FSDP stores or accumulates them,
in whatever dtype it uses. At the end of backward everything that arrived is decoded and added to those gradients. A
step is thus atomic over all modules, as under DDP, and communication overlaps with backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import digest
from ..algebra.base import Method
from ..algebra.named import build
from ..communicator.reduce_scatter import ReduceScatter
from ..errors import ConfigError, PeerError, StateError
from ..handle import Handle
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import StepDriver
from ..session import Session
from ..telemetry import Stats
from ..transport.torch_dist import TorchTransport
from .backward import FAILED, BackwardPass
from .fsdp_groups import Group, Parameter, find_groups, is_sharded

__all__ = ["NO_REPLICAS", "FSDPHandle", "is_sharded"]

NO_REPLICAS = (
    "replicas= goes with a model sharded over a mesh of two dimensions, (replicate, shard); leave it out."
)


class ReplicaHandle(Handle):
    """The exchange between the replicas of a hybrid mesh. `switch` changes its method alone."""

    def __init__(self, session: Session, owner: FSDPHandle) -> None:
        super().__init__(session)
        self._owner = weakref.ref(owner)

    def _busy(self) -> bool:
        owner = self._owner()
        return owner is not None and owner._busy()


@dataclass(slots=True)
class _Sent:
    """What a call of the reduce-scatter has sent: a segment for each parameter, and the factor of the results."""

    group: Group
    segments: list[Segment]
    parameters: list[Parameter]
    factor: float


class FSDPHandle(Handle):
    """The handle of a sharded model. The model's modules own it, so it holds only weak references to them.

    `replicas` is the handle of the exchange between replicas, on a mesh of two dimensions; otherwise None.
    """

    def __init__(
        self, model: nn.Module, method: Method, between: Method | None = None, *, scaler: Any = None
    ) -> None:
        self._groups = find_groups(model)
        if any(isinstance(group.comm, _CompressedReduceScatter) for group in self._groups):
            raise ConfigError(
                "this model is attached already; use switch(method) of the handle that attach() returned, or close() that "
                "first."
            )
        first = self._groups[0]
        if first.replica_group is None and between is not None:
            raise ConfigError(NO_REPLICAS)
        self._scaler = scaler
        self._driver: StepDriver | None = None
        self._pass: BackwardPass | None = None
        self._sent: list[_Sent] = []
        super().__init__(Session(method, TorchTransport(first.shard_group), ReduceScatter))
        self.replicas: ReplicaHandle | None = None
        if first.replica_group is not None:
            transport = TorchTransport(first.replica_group)
            self.replicas = ReplicaHandle(Session(between or method, transport), self)
        for group in self._groups:
            group.take_over(_CompressedReduceScatter(self, group))

    # The handle's interface, for both axes -----------------------------------------------------------

    def stats(self) -> Stats:
        """Bytes, collectives and seconds of this rank since `attach`, over both dimensions of a hybrid mesh."""
        own = super().stats()
        if self.replicas is None:
            return own
        total = own + self.replicas.stats()
        total.steps, total.skipped = own.steps, own.skipped
        return total

    def detach(self) -> None:
        """Average gradients uncompressed from the next step on; the residual is added to the next gradient."""
        super().detach()
        if self.replicas is not None:
            self.replicas.switch(build("none"))

    def state_dict(self) -> dict[str, Any]:
        """All state of this rank, over both dimensions of a hybrid mesh."""
        state = super().state_dict()
        if self.replicas is None:
            return state
        return digest.sealed({**state, "replicas": self.replicas.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore the `state_dict` of this rank, or choose it from a list of all ranks. Their number must be the same."""
        size = self.session.transport.size
        if isinstance(state, (list, tuple)) and len(state) != size:
            raise StateError(
                f"the state of a model sharded over {len(state)} ranks cannot be converted to {size}: its shards are others; "
                "detach() and train a step before saving, which leaves no residuals, and attach anew."
            )
        if self.replicas is None:
            super().load_state_dict(state)
            return
        own = self.session.fitting(state, self._parameter_sizes())
        if "replicas" not in own:
            raise StateError(
                "the saved state has no part for replicas; it is of a model sharded over a mesh of one dimension."
            )
        before = self.replicas.state_dict()
        self.replicas.load_state_dict(own["replicas"])
        try:
            super().load_state_dict(state)
        except BaseException:
            self.replicas.load_state_dict(before)
            raise

    def _parameter_sizes(self) -> Mapping[str, int]:
        found = [parameter for group in self._groups for parameter in group.all_parameters]
        return {parameter.name: parameter.padded * self.session.transport.size for parameter in found}

    def _busy(self) -> bool:
        return self._driver is not None

    def _release(self) -> None:
        self._take_back()
        for group in self._groups:
            group.give_back()
        if self.replicas is not None:
            self.replicas.close()

    # Called by FSDP ----------------------------------------------------------------------------------

    def exchange(self, group: Group, gradients: Tensor) -> None:
        """Compress and send the gradients of a module; the results follow at the end of backward."""
        if any(sent.group is group for sent in self._sent):
            self._finish()  # the module ran twice: its residual must be settled before it is used again
        if self._driver is None:
            self._start()
        driver = self._driver
        assert driver is not None
        try:
            sent = self._prepared(group, gradients)
            driver.launch(Bucket(("fsdp", group.index), sent.segments))
        except BaseException as error:
            driver.discard(error)
            self._forget()
            raise
        self._sent.append(sent)

    def _start(self) -> None:
        self._pass = BackwardPass(self._finish, self._take_back)
        if self._scaler is not None:
            self.session.set_loss_scale(float(self._scaler.get_scale()))
            if self.replicas is not None:
                self.replicas.session.set_loss_scale(float(self._scaler.get_scale()))
        self._driver = self.session.driver()

    def _prepared(self, group: Group, gradients: Tensor) -> _Sent:
        parameters = group.parameters(gradients.numel())
        rows = gradients.view(self.session.transport.size, -1)
        parts = rows.split([parameter.padded for parameter in parameters], dim=1)
        segments = [Segment(parameter.name, part, part) for parameter, part in zip(parameters, parts)]
        return _Sent(group, segments, parameters, group.factor(gradients.dtype))

    @torch.no_grad()
    def _finish(self) -> None:
        driver = self._driver
        if driver is None:  # finished already, by a module that ran twice
            self._pass = None
            return
        try:
            driver.finish(None if self.replicas is None else self._joint)
            self._average_replicas()
            for sent in self._sent:
                for segment, parameter in zip(sent.segments, sent.parameters):
                    parameter.add_gradient(segment.flat, sent.factor)
        except BaseException as error:
            driver.discard(error)
            raise
        finally:
            self._forget()

    def _joint(self, finite: bool, failed: bool) -> bool:
        """Whether the step is finite in every replica."""
        assert self.replicas is not None
        transport = self.replicas.session.transport
        device = self._sent[0].segments[0].flat.device
        counts = torch.tensor([not finite, failed], dtype=torch.float32, device=device)
        transport.allreduce(counts).wait()
        nonfinite, failures = counts.tolist()
        if failures and not failed:
            raise PeerError(
                "another replica could not compress its gradients; its ranks say why in their logs."
            )
        return not nonfinite

    def _average_replicas(self) -> None:
        """Average the results of the reduce-scatter over replicas, with any method."""
        if self.replicas is None:
            return
        driver = self.replicas.session.driver()
        try:
            for sent in self._sent:
                for segment, parameter in zip(sent.segments, sent.parameters):
                    segment.flat = segment.flat[: parameter.shape.numel()]  # without padding
                    segment.view = segment.flat.view(parameter.shape)
                segments = [segment for segment in sent.segments if segment.flat.numel()]
                if segments:
                    driver.launch(Bucket(("fsdp", sent.group.index), segments))
            driver.finish()
        except BaseException as error:
            driver.discard(error)
            raise

    def _take_back(self) -> None:
        """Abort the step in progress, if any: its backward pass has raised."""
        if self._driver is not None:
            self._driver.abandon(FAILED)
        self._forget()

    def _forget(self) -> None:
        self._driver = self._pass = None
        self._sent = []


class _CompressedReduceScatter:
    """What FSDP calls for a module, in place of its reduce-scatter."""

    def __init__(self, handle: FSDPHandle, group: Group) -> None:
        self._handle = handle
        self._group = group
        self.before: Any = None
        """What FSDP had in its place; kept here, since a handle must not keep process groups alive."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        output_tensor.zero_()
        self._handle.exchange(self._group, input_tensor)
