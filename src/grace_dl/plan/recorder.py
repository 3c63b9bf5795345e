"""`grace.profile(model)`: records a profile of a training script while it runs."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..errors import ConfigError, GraceError
from ..output_files import check_writable
from ..settings import whole
from .profile import Parameter, Profile

WARM_UP = 3
"""Steps that are not counted: allocators and caches are cold, and DDP rebuilds its buckets."""


class _Clock:
    """Marks points in time on a device; GPUs run behind the program, so there a mark is an event of the stream."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        if not self._cuda:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class Recorder:
    """Records the steps of a model's training; `profile` is None until it is complete."""

    def __init__(
        self,
        model: nn.Module,
        path: Path | None,
        steps: int,
        on_complete: Callable[[Profile], None] | None = None,
    ) -> None:
        inner = _unwrap(model)
        # DDP exchanges nothing of empty parameters.
        self._names = {p: name for name, p in inner.named_parameters() if p.requires_grad and p.numel()}
        if not self._names:
            raise ConfigError(
                "this model has no parameters that require gradients; there is nothing to profile."
            )
        self.profile: Profile | None = None
        self._label = type(inner).__name__
        self._path = path
        self._steps = whole("steps", steps, "training steps to record", least=1)
        self._on_complete = on_complete
        self._device = next(iter(self._names)).device
        self._clock = _Clock(self._device)
        self._begun: Any = None
        """The start of the first forward pass since the last update."""
        self._output: Any = None
        """The end of the last forward pass, until a gradient of its backward pass is ready."""
        self._forward_end: Any = None
        self._ready: dict[nn.Parameter, Any] = {}
        self._update_start: Any = None
        self._samples: list[tuple[float, float, float]] = []
        self._ready_samples: dict[nn.Parameter, list[float]] = {p: [] for p in self._names}
        self._seen = 0
        self._foreign = 0
        """Steps of optimizers that have none of the parameters."""
        self._hooks: list[Any] = [
            model.register_forward_pre_hook(self._on_forward),
            model.register_forward_hook(self._on_output),
            *(p.register_post_accumulate_grad_hook(self._on_gradient) for p in self._names),
            register_optimizer_step_pre_hook(self._on_update),
            register_optimizer_step_post_hook(self._on_updated),
        ]

    def close(self) -> None:
        """Stop recording."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # With gradient accumulation only the last backward pass overlaps communication: what happens before it counts as forward.

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        if torch.is_grad_enabled() and self._begun is None:
            self._begun = self._clock.mark()

    def _on_output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            self._output = self._clock.mark()

    def _on_gradient(self, parameter: Any) -> None:
        if self._output is not None:
            self._forward_end, self._output = self._output, None
            self._ready.clear()
        self._ready[parameter] = self._clock.mark()

    def _on_update(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._update_start = self._clock.mark()

    def _on_updated(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if not any(p in self._names for group in optimizer.param_groups for p in group["params"]):
            self._warn_of_another_model()
            return
        if self._ready and self._begun is not None and self._forward_end is not None:
            self._seen += 1
            if self._seen > WARM_UP:
                self._sample(self._clock.mark())
        self._begun = self._output = self._forward_end = None
        self._ready.clear()
        if self._seen >= self._steps + WARM_UP:
            self._complete()

    def _sample(self, end: Any) -> None:
        """Count the step whose update has ended."""
        between = self._clock.between
        ready = {p: between(self._forward_end, mark) for p, mark in self._ready.items()}
        forward = between(self._begun, self._forward_end)
        self._samples.append((forward, max(ready.values()), between(self._update_start, end)))
        for parameter, seconds in ready.items():
            self._ready_samples[parameter].append(seconds)

    def _warn_of_another_model(self) -> None:
        self._foreign += 1
        if self._seen == 0 and self._foreign == self._steps + WARM_UP:
            warnings.warn(
                f"{self._foreign} optimizer steps have passed, none of which updated a parameter of the {self._label} that "
                "profile() was given, so no profile is written; give profile() the model that is trained.",
                stacklevel=2,
            )

    def _complete(self) -> None:
        self.close()
        forward, backward, update = (statistics.median(column) for column in zip(*self._samples))
        times = {p: statistics.median(seconds) for p, seconds in self._ready_samples.items() if seconds}
        parameters = tuple(
            Parameter(self._names[p], tuple(p.shape), p.dtype, min(times[p], backward))
            for p in sorted(times, key=lambda p: times[p])
        )
        self.profile = Profile(self._label, parameters, forward, backward, update, self._device.type)
        if self._path is not None and _is_first():
            self._save(self.profile, self._path)
        if self._on_complete is not None:
            self._on_complete(self.profile)

    def _save(self, found: Profile, path: Path) -> None:
        try:
            found.save(path)
        except GraceError as error:  # training goes on
            warnings.warn(f"{error} The recorder's `profile` holds it.", stacklevel=2)
        else:
            print(f"grace: profile of {self._steps} steps written to {path}", flush=True)


def _unwrap(model: nn.Module) -> nn.Module:
    """The model within DDP, DataParallel and `torch.compile`, whose parameters have the names of the script."""
    while True:
        compiled = getattr(model, "_orig_mod", None)
        if isinstance(compiled, nn.Module):
            model = compiled
        elif isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        else:
            return model


def _checked(path: Any) -> Path:
    """The path of a profile; training is not to end because it cannot be written."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ConfigError(
            f"profile(path={path!r}) must name a file, such as 'grace-profile.json', or be None."
        )
    found = Path(path)
    if found.is_dir():
        raise ConfigError(f"profile(path={str(path)!r}) is a folder; name a file in it.")
    if _is_first():
        check_writable(found, "profile(): path")
    return found


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def profile(model: nn.Module, path: str | Path | None = "grace-profile.json", *, steps: int = 20) -> Recorder:
    """Record a profile of the training that follows, for `grace plan --profile`.

    Call it once, after the model and before the training loop; training itself is not changed. After `steps` training steps
    (and a few to warm up) rank 0 writes `path`; None writes nothing. The returned recorder's `profile` holds the result.

    >>> import grace_dl as grace
    >>> model = torch.nn.Linear(8, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> recorder = grace.profile(model, path=None, steps=2)
    >>> for _ in range(5):
    ...     model(torch.ones(4, 8)).sum().backward()
    ...     optimizer.step()
    >>> [parameter.name for parameter in recorder.profile.parameters]
    ['bias', 'weight']
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"profile() takes a torch.nn.Module, not {type(model).__name__}.")
    return Recorder(model, None if path is None else _checked(path), steps)
