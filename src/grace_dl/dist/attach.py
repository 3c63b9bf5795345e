"""Attaching to `DistributedDataParallel` through its communication hook.

DDP calls the hook as each bucket of gradients fills, in an order all ranks share, while the rest of backward still runs.
Every bucket is compressed and sent there; the hook of the last bucket waits for all, decodes and completes their
futures. So everything happens on the thread that runs backward: no collective starts elsewhere, and an error is raised
where the user called `backward`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError, UnsupportedError
from ..pipeline.bucket import Bucket, Segment, check
from ..pipeline.exchange import Exchange
from ..telemetry import Stats
from ..transport.torch_dist import TorchTransport

if TYPE_CHECKING:
    from ..communicator.base import Communicator

_MARK = "_grace_attached"


class Attached:
    """A model whose gradients are compressed: reports statistics, and changes the method between steps."""

    def __init__(
        self, communicator: Communicator, model: DistributedDataParallel, scaler: Any = None
    ) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise ConfigError(
                f"attach() takes a DistributedDataParallel model, not {type(model).__name__}; wrap it first, or call "
                "step(tensor, name) on each gradient yourself."
            )
        if hasattr(model, _MARK):
            raise ConfigError(
                "this model is attached already, and DDP takes one hook for life; "
                "use switch(communicator) of the handle that attach() returned."
            )
        self._model = model
        self._scaler = scaler
        self._names = {id(p): name for name, p in model.module.named_parameters() if p.requires_grad}
        self._transport = TorchTransport(model.process_group)
        self._exchange: Exchange | None = None
        self._futures: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = []
        self._used: set[int] | None = None
        self._communicator = communicator
        communicator.transport = self._transport
        if model.find_unused_parameters or model.static_graph:
            self._track_use()
        # DDP inspects a hook's annotations and takes no strings for them, hence a function without any. It must not hold
        # this object, and so the model: DDP keeps it where the garbage collector does not see the cycle.
        weak = weakref.ref(self)
        model.register_comm_hook(None, lambda state, bucket: weak()._hook(bucket))  # type: ignore[union-attr]
        setattr(model, _MARK, self)

    # What users call ----------------------------------------------------------------------------------

    @property
    def communicator(self) -> Communicator:
        """The method in use."""
        return self._communicator

    def stats(self) -> Stats:
        """Bytes, collectives and seconds so far, of this rank with the present method."""
        return self._communicator.stats.copy()

    def switch(self, communicator: Communicator) -> None:
        """Use another method from the next step on. All ranks must do so between the same two steps.

        What the present method still owes is added to the next gradient, so nothing is lost.
        """
        if self._exchange is not None:
            raise ConfigError("a step is under way; switch between optimizer.step() and the next backward().")
        if communicator is self._communicator:
            return
        communicator.transport = self._transport
        communicator.take_over(self._communicator, list(self._names.values()))
        self._communicator = communicator

    def detach(self) -> None:
        """Go back to plain averaging. DDP keeps its hook, which from now on sends everything as it is."""
        from ..communicator.allreduce import Allreduce
        from ..compressor.none import NoneCompressor

        self.switch(Allreduce(NoneCompressor()))

    # What DDP calls -----------------------------------------------------------------------------------

    def _track_use(self) -> None:
        used: set[int] = set()
        for parameter in self._model.module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p: used.add(id(p)))
        self._used = used

    def _hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._start()
        exchange = self._exchange
        assert exchange is not None
        try:
            exchange.launch(self._bucket(bucket))
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
                devices=[] if bucket.buffer().device.type == "cpu" else [bucket.buffer().device]
            )
            self._futures.append((future, bucket.buffer()))
            if bucket.is_last():
                exchange.finish()
                self._complete()
        except BaseException:
            exchange.discard()
            self._exchange = None
            raise
        return future

    def _start(self) -> None:
        if self._scaler is not None:
            self._communicator.set_loss_scale(float(self._scaler.get_scale()))
        self._futures = []
        self._exchange = Exchange(self._communicator)

    def _complete(self) -> None:
        for future, buffer in self._futures:
            future.set_result(buffer)
        self._futures = []
        self._exchange = None
        if self._used is not None:
            self._used.clear()

    def _bucket(self, bucket: Any) -> Bucket:
        buffer = bucket.buffer()
        parameters = bucket.parameters()
        if buffer.layout != torch.strided:
            check(buffer, self._names[id(parameters[0])])
        segments = []
        start = buffer.storage_offset()
        for parameter, view in zip(parameters, bucket.gradients()):
            name = self._names.get(id(parameter))
            if name is None:
                raise UnsupportedError(
                    "a parameter was added to the model after attach(); wrap the finished model in DDP, then attach."
                )
            offset = view.storage_offset() - start
            flat = buffer[offset : offset + view.numel()]
            used = self._used is None or id(parameter) in self._used
            segments.append(Segment(name, flat, view, used))
        check(buffer, segments[0].name)
        return Bucket(("ddp", bucket.index()), segments, buffer)
