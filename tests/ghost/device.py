"""A pretended CUDA device: tensors that say `cuda:0`, keep their data in CPU memory, and refuse what CUDA refuses.

Operations run on the CPU data, so results are real. Each one is counted as a launch, and each that a host would have to
wait for (a value read back, a size that depends on data, a blocking copy) as a wait, by the line of the package that
asked for it. `torch.cuda` is patched for the whole process: use it in a process of its own (`pool.py`).

Streams, events and the caching allocator do not exist here: what they do to a program is not tested.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)


class MixedDevices(RuntimeError):
    """An operation was given tensors of the pretended device and of the CPU."""


class Count:
    """Launches and host waits of one thread, by source line of the package."""

    def __init__(self) -> None:
        self.launches: collections.Counter[str] = collections.Counter()
        self.waits: collections.Counter[str] = collections.Counter()

    def lines(self) -> str:
        """What waited and what was launched, the most frequent first."""
        parts = [f"wait   {n:5d}  {line}" for line, n in self.waits.most_common()]
        return "\n".join(parts + [f"launch {n:5d}  {line}" for line, n in self.launches.most_common()])


_local = threading.local()


@contextlib.contextmanager
def counting() -> Iterator[Count]:
    """Count what this thread does."""
    before = getattr(_local, "count", None)
    _local.count = Count()
    try:
        yield _local.count
    finally:
        _local.count = before


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Leave out what this thread does: the work of the network, not of the program."""
    before = getattr(_local, "count", None)
    _local.count = None
    try:
        yield
    finally:
        _local.count = before


def _line() -> str:
    """The innermost line of the package on the stack."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        _, found, place = frame.f_code.co_filename.partition("/grace_dl/")
        if found:
            return f"{place}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"


def busy(collectives: bool) -> None:
    """Whether work of this thread on the device waits for collectives that may never be complete."""
    _local.busy = collectives


def wait(why: str) -> None:
    """The host waits for the device."""
    if getattr(_local, "busy", False):
        raise AssertionError(f"the host waits for a collective that may never be complete: {why} {_line()}")
    count: Count | None = getattr(_local, "count", None)
    if count is not None:
        count.waits[f"{why} {_line()}"] += 1


def launch(what: str) -> None:
    count: Count | None = getattr(_local, "count", None)
    if count is not None:
        count.launches[f"{what} {_line()}"] += 1


class Ghost(Tensor):
    """A tensor of the pretended device; `data_` is the CPU tensor below it."""

    data_: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> Ghost:
        made: Ghost = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=CUDA,
        )
        made.data_ = data
        return made

    def tolist(self) -> Any:
        wait("tolist")
        return self.data_.tolist()

    def data_ptr(self) -> int:
        return self.data_.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.data_.untyped_storage()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Ghost({self.data_})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Within it, `device="cuda"` makes tensors of the pretended device. One for each thread."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and keeping the compiler out costs more than an operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def up(tensor: Tensor) -> Tensor:
    """A copy on the pretended device."""
    return Ghost(tensor.clone())


def down(tensor: Tensor) -> Tensor:
    """The CPU data of a tensor."""
    return tensor.data_ if isinstance(tensor, Ghost) else tensor


def _wrapped(value: Any) -> Any:
    return Ghost(value) if isinstance(value, Tensor) and not isinstance(value, Ghost) else value


# No kernel: views, and memory that is only reserved.
_FREE = frozenset(
    "view reshape slice select split split_with_sizes expand unsqueeze squeeze t transpose permute detach alias as_strided "
    "unbind narrow _unsafe_view view_as lift_fresh _reshape_alias unfold empty empty_strided empty_like new_empty "
    "resolve_conj resolve_neg unsafe_split unsafe_chunk chunk".split()
)
# The host must know a size or a value that the device computes.
_WAITS = frozenset(
    "equal is_nonzero nonzero masked_select _unique2 unique_dim unique_consecutive bincount _linalg_check_errors".split()
)
_ACROSS = frozenset("_to_copy copy_ lift_fresh _local_scalar_dense _foreach_copy_".split())


@functools.cache
def _facts(func: Any) -> tuple[str, tuple[tuple[int, str], ...], bool]:
    """An operation's name, the place and name of each argument that it writes, and whether it returns anything.

    Kept, since a schema is made anew whenever it is asked for.
    """
    schema = func._schema
    written = [
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info and argument.alias_info.is_write
    ]
    return schema.name.partition("::")[2], tuple(written), bool(schema.returns)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors among arguments: themselves, or in lists."""
    for item in value:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _tensors(item)


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with every tensor in it changed; it is a tensor, a list or something else."""
    if isinstance(value, (list, tuple)):
        return type(value)([_each(change, item) for item in value])
    return change(value) if isinstance(value, Tensor) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, written, returns = _facts(func)
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    ghosts = any(isinstance(tensor, Ghost) for tensor in tensors)
    target = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    upward = target is not None and target.type == "cuda"
    if not ghosts and not upward:
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)
    if ghosts and name not in _ACROSS:
        _refuse_mixed(func, name, tensors)
    _note(func, name, args, kwargs, target)
    inner_args = _each(down, args)
    inner_kwargs = {option: _each(down, value) for option, value in kwargs.items()}
    if upward:
        inner_kwargs["device"] = torch.device("cpu")
    with torch._C._DisableTorchDispatch():
        out = func(*inner_args, **inner_kwargs)
    if name == "_local_scalar_dense" or (name == "_to_copy" and target is not None and not upward):
        return out
    if not written:
        return _each(_wrapped, out)
    # An operation that writes returns the very tensors it was given.
    results = [args[place] if place < len(args) else kwargs[option] for place, option in written]
    if not returns:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def _refuse_mixed(func: Any, name: str, tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if isinstance(tensor, Ghost) or tensor.dim() == 0:
            continue
        if name.startswith(("index", "_index")) and tensor.dtype in (torch.int64, torch.bool, torch.uint8):
            continue  # CUDA takes indices from the host (and waits, see `_note`)
        raise MixedDevices(
            f"{func} was given tensors on cuda:0 and on cpu, the latter of shape {tuple(tensor.shape)}"
        )


def _note(func: Any, name: str, args: Any, kwargs: dict[str, Any], target: torch.device | None) -> None:
    """Count an operation."""
    if name == "_local_scalar_dense":
        wait("item")
        return
    if name in _WAITS:
        wait(name)
    if name == "repeat_interleave" and func._overloadname == "Tensor" and kwargs.get("output_size") is None:
        wait(name)
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [index for index in args[1] if isinstance(index, Tensor)]
        if any(not isinstance(index, Ghost) for index in indices):
            wait("index from the host")
        masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if masks and (name == "index" or args[2].numel() != 1):
            wait("index by a mask")
    if name == "copy_":
        across = isinstance(args[0], Ghost) != isinstance(args[1], Ghost)
        if across and not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking"):
            wait("copy up" if isinstance(args[0], Ghost) else "copy down")
    if name == "_to_copy" and target is not None:
        across = (target.type == "cuda") != isinstance(args[0], Ghost)
        if across and not kwargs.get("non_blocking"):
            wait("copy up" if target.type == "cuda" else "copy down")
    if name not in _FREE:
        launch(name)


_tensor = torch.tensor


def _made(data: Any, **options: Any) -> Tensor:
    """`torch.tensor`, which does not pass through the dispatcher."""
    device = options.get("device")
    if device is None or torch.device(device).type != "cuda":
        return _tensor(data, **options)
    with torch._C._DisableTorchDispatch():
        made = _tensor(data, **{**options, "device": "cpu"})
    wait("copy up")
    return Ghost(made)


def install(guard: str) -> None:
    """Patch this process: CUDA needs no driver. `guard`: the library built from guard.cpp."""
    ctypes.CDLL(guard)
    lazy: Callable[[], None] = lambda: None  # noqa: E731
    vars(torch.cuda)["_lazy_init"] = lazy
    vars(torch.cuda)["device"] = contextlib.nullcontext
    vars(torch)["tensor"] = _made
    torch._C._set_only_lift_cpu_tensors(True)
