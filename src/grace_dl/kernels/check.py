"""Argument checks shared by all backends; they protect raw memory from invalid bytes of peers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import PayloadError, UnsupportedError
from .wire import Spec


def payload_part(part: Tensor, dtype: torch.dtype, numel: int) -> None:
    """Raise unless `part` is a contiguous tensor of this dtype and length."""
    if part.dtype is not dtype or part.numel() != numel or not part.is_contiguous():
        raise PayloadError(
            f"a payload part has {part.numel()} elements of {part.dtype} "
            f"({'contiguous' if part.is_contiguous() else 'strided'}), but {numel} contiguous elements of {dtype} "
            "were expected: the peer uses another method, other settings or another tensor size."
        )


def payload_parts(payload: Sequence[Tensor], spec: Spec) -> None:
    """Raise unless a peer's payload matches `spec`."""
    found = tuple([(part.dtype, part.numel()) for part in payload])
    if found != tuple(spec):
        raise PayloadError(
            f"a payload holds {_describe(found)}, but {_describe(spec)} were expected: the peer uses another method, "
            "other settings or another tensor size."
        )


def _describe(parts: Spec) -> str:
    return ", ".join(f"{count} {str(dtype).removeprefix('torch.')}" for dtype, count in parts) or "nothing"


def working(x: Tensor) -> None:
    """Raise unless `x` is contiguous float32 or float64."""
    if x.dtype not in (torch.float32, torch.float64) or not x.is_contiguous():
        raise UnsupportedError(
            f"a kernel was given a {'contiguous' if x.is_contiguous() else 'strided'} tensor of {x.dtype}; "
            "kernels take contiguous float32 or float64: call .float().contiguous() first."
        )


def has_memory(tensor: Tensor) -> bool:
    """Whether the elements are where `data_ptr()` says; not so for DTensor, FakeTensor and other wrappers on the CPU."""
    kind = type(tensor)
    if kind in _PLAIN:
        return True
    if kind.__torch_dispatch__ is Tensor.__torch_dispatch__:
        _PLAIN.add(kind)
        return True
    return not tensor.is_cpu and not any(base.__name__ in ("DTensor", "FakeTensor") for base in kind.__mro__)


_PLAIN: set[type] = {Tensor, torch.nn.Parameter}


def broken(what: str) -> PayloadError:
    """The error for a payload whose sizes are right but whose contents do not decode."""
    return PayloadError(
        f"a payload does not decode: {what}. It was damaged on the way, or the peer runs another method or version; "
        "check that all ranks use the same settings and release."
    )


def shown(bad: Tensor) -> bool:
    """Whether the host can see that a payload is invalid.

    Payloads on a device are checked there before they are decoded, all those of a step at once (`faults`): asking here
    would stop the host for each of them.
    """
    return bad.is_cpu and bool(bad.any())


def scale_part(scale: Tensor, dtype: torch.dtype) -> None:
    """Raise unless `scale` is one number of this dtype; on the host it must also be finite and not negative."""
    payload_part(scale, dtype, 1)
    if scale.is_cpu:
        checked_scale(scale, dtype)


def announced(values: Tensor, count: Tensor | None) -> int:
    """How many values of a sparse payload are valid; waits for the device that holds the number."""
    return values.numel() if count is None else int(count.item())


def checked_scale(scale: Tensor, dtype: torch.dtype) -> float:
    """A payload's scale, which must be finite and not negative."""
    payload_part(scale, dtype, 1)
    value = scale.item()
    if not 0 <= value < math.inf:
        raise broken(f"the scale is {value}")
    return value


def checked_means(means: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """The two means of a 1-bit payload: one not positive, one not negative."""
    payload_part(means, dtype, 2)
    low, high = means.tolist()
    if not -math.inf < low <= 0 <= high < math.inf:
        raise broken(f"the means of the negative and the other elements are {low} and {high}")
    return low, high


def checked_flag(flag: Tensor) -> bool:
    """The flag of a sign payload: whether the tensor is not all zero."""
    payload_part(flag, torch.uint8, 1)
    value = flag.item()
    if value > 1:
        raise broken(f"the flag of a zero tensor is {value}, not 0 or 1")
    return bool(value)
