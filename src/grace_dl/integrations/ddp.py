"""Attaching to `DistributedDataParallel` through its communication hook.

DDP calls the hook as each bucket of gradients fills, in the same order on all ranks, while the rest of backward runs.
The hook compresses and sends the bucket; the hook of the last bucket waits for all, decodes and completes their
futures. Everything happens on the thread that runs backward: no collective starts elsewhere, and errors are raised
from `backward()`.
"""

# DDP inspects a hook's annotations and does not accept strings, so the hook has none.
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ..algebra.base import Method
from ..errors import ConfigError, GraceError, UnsupportedError
from ..handle import Handle
from ..names import canonical_names
from ..pipeline.bucket import Bucket, Segment, check
from ..pipeline.driver import StepDriver
from ..session import Session
from ..transport.channels import resolve_group
from ..transport.torch_dist import TorchTransport
from ..tuning.tuner import AutoTuner
from .backward import FAILED, BackwardPass

_AFTERWARDS = (
    "(DistributedDataParallel takes no further step after an error in a backward pass, but fails with an assertion of its own: "
    "delete it, wrap the bare model anew and attach again, or start from a checkpoint.)"
)


class DDPHandle(Handle):
    """The handle of a DDP model. The model's hook owns it, so it holds only a weak reference to the model."""

    def __init__(
        self, model: DistributedDataParallel, method: Method, *, scaler: Any = None, hooked: bool = False
    ) -> None:
        """`hooked`: the model's hook is the caller's, who passes each bucket to `exchange`."""
        # The hook state of a copied model has no handle, and its reducer has no hook.
        hooks = [state for _, state in model._comm_hooks if isinstance(state, _HookState) and state.handle]
        if any(state.handle is not None and not state.handle.closed for state in hooks):
            raise ConfigError(
                "this model is attached already; use switch(method) of the handle that attach() returned, or close() that "
                "first."
            )
        if getattr(model, "_use_python_reducer", False):
            raise ConfigError(
                'this model was wrapped in DDP with torch._dynamo.config.optimize_ddp = "python_reducer", which ignores what '
                'communication hooks return; set it to "ddp_optimizer", its default, before wrapping the model.'
            )
        self._model = weakref.ref(model)
        self._scaler = scaler
        named = list(model.module.named_parameters())
        names = canonical_names([name for name, _ in named])
        self._names = {p: name for name, (_, p) in zip(names, named) if p.requires_grad}
        self._sizes = {name: p.numel() for name, (_, p) in zip(names, named)}
        for parameter, name in self._names.items():
            check(parameter, name)  # of complex parameters DDP's buckets show one half only
        self._driver: StepDriver | None = None
        self._pass: BackwardPass | None = None
        self._futures: list[tuple[torch.futures.Future[Tensor], Tensor]] = []
        self._used: set[Tensor] | None = None
        self._hooks: list[Any] = []
        super().__init__(Session(method, TorchTransport(model.process_group), tuner=AutoTuner))
        if model.find_unused_parameters or model.static_graph:
            self._track_use()
        if hooks:  # DDP accepts one hook for its lifetime, so a closed handle's hook is reused
            hooks[0].handle = self
        elif not hooked:
            model.register_comm_hook(_HookState(self, model.process_group.group_name), _hook)

    def _busy(self) -> bool:
        return self._driver is not None

    def _parameter_sizes(self) -> Mapping[str, int]:
        return self._sizes

    def _track_use(self) -> None:
        used: set[Tensor] = set()
        self._hooks = [parameter.register_post_accumulate_grad_hook(used.add) for parameter in self._names]
        self._used = used

    def _release(self) -> None:
        self._take_back()
        for hook in self._hooks:
            hook.remove()

    # Called by DDP -----------------------------------------------------------------------------------

    def exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Compress and send a bucket; after the last one, complete all futures."""
        if bucket.index() == 0:
            self._start()
        driver = self._driver
        assert driver is not None
        if self._pass is None:
            self._pass = BackwardPass(self._passed, self._take_back)
        try:
            driver.launch(self._bucket(bucket))
            buffer = bucket.buffer()
            future: torch.futures.Future[Tensor] = torch.futures.Future(
                devices=[] if buffer.is_cpu else [buffer.device]
            )
            self._futures.append((future, buffer))
            if bucket.is_last():
                driver.finish()
                self._complete()
        except BaseException as error:
            driver.discard(error)
            self._driver = None
            if isinstance(error, GraceError):
                error.args = (f"{error} {_AFTERWARDS}",)
            raise
        return future

    def _start(self) -> None:
        self._take_back()
        if self._scaler is not None:
            self.session.set_loss_scale(float(self._scaler.get_scale()))
        self._futures = []
        self._driver = self.session.driver()

    def _passed(self) -> None:
        """A pass within the backward pass, that of a reentrant checkpoint, ended before the last bucket."""
        self._pass = None

    def _take_back(self) -> None:
        """Abort the step in progress, if any: its backward pass has raised."""
        if self._driver is not None:
            self._driver.abandon(FAILED)
        self._driver = self._pass = None

    def _complete(self) -> None:
        for future, buffer in self._futures:
            future.set_result(buffer)
        self._futures = []
        self._driver = self._pass = None
        if self._used is not None:
            self._used.clear()

    def _bucket(self, bucket: Any) -> Bucket:
        buffer = bucket.buffer()
        parameters = bucket.parameters()
        if buffer.layout != torch.strided:
            check(buffer, self._names[parameters[0]])
        segments = []
        start = buffer.storage_offset()
        for parameter, view in zip(parameters, bucket.gradients()):
            name = self._names.get(parameter)
            if name is None:
                raise UnsupportedError(
                    "a parameter was added to the model after attach(); wrap the finished model in DDP, then attach."
                )
            offset = view.storage_offset() - start
            flat = buffer[offset : offset + view.numel()]
            used = self._used is None or parameter in self._used
            segments.append(Segment(name, flat, view, used))
        check(buffer, segments[0].name)
        return Bucket(("ddp", bucket.index()), segments, buffer)


class _HookState:
    """The state that DDP stores with the hook. A pickled or deep-copied model is not attached."""

    def __init__(self, handle: DDPHandle | None = None, group: str = "") -> None:
        self.handle = handle
        self.group = group

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (_HookState, ())


def _hook(state, bucket):  # type: ignore[no-untyped-def]
    if state.handle is None or state.handle.closed:
        return allreduce_hook(resolve_group(state.group), bucket)  # plain DDP
    return state.handle.exchange(bucket)
