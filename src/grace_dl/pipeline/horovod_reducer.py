"""The reducer under Horovod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..transport.horovod import HorovodTransport
from .bucket import Segment
from .reducer import Reducer

if TYPE_CHECKING:
    from ..communicator.base import Communicator


class HorovodReducer(Reducer):
    """A reducer that can sum instead of average, make sparse gradients dense, and outlives elastic resets."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        communicator: Communicator,
        *,
        process_set: Any = None,
        sum_: bool = False,
        sparse_as_dense: bool = False,
        **options: Any,
    ) -> None:
        self._process_set = process_set
        self._sum = sum_
        self._sparse_as_dense = sparse_as_dense
        self._sparse: list[Tensor] = []
        self.settled = False
        if process_set is not None or not isinstance(communicator.transport, HorovodTransport):
            communicator.transport = HorovodTransport(process_set)
        super().__init__(named_parameters, communicator, **options)

    @property
    def pending(self) -> bool:
        """Whether a step's gradients have not been exchanged yet."""
        return not self.settled or self.unfinished

    def forget(self) -> None:
        """Give up the step under way."""
        if self._exchange is not None:
            self._exchange.discard()
        self._exchange = None
        self._launched = self._passed = 0
        self._in_backward = False
        self._used.clear()

    def finish(self) -> bool:
        try:
            finite = super().finish()
            if self._sum:
                for bucket in self._buckets:
                    for parameter in bucket:
                        if parameter.grad is not None:
                            parameter.grad.mul_(self.communicator.transport.size)
            for parameter in self._sparse:
                assert parameter.grad is not None
                parameter.grad = parameter.grad.to_sparse(1)
        finally:
            self._sparse.clear()
        self.settled = True
        return finite

    def _launch(self) -> None:
        transport = self.communicator.transport
        if self._exchange is None and isinstance(transport, HorovodTransport) and transport.stale:
            self.communicator.rejoin(HorovodTransport(self._process_set), list(self._names.values()))
        super()._launch()

    def _segment(self, parameter: Tensor) -> Segment:
        if self._sparse_as_dense and parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
            self._sparse.append(parameter)
        return super()._segment(parameter)
