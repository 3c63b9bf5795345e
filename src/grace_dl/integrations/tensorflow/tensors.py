"""TensorFlow's tensors seen by PyTorch and back: the same memory, by DLPack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import torch

ALIGN = 64
"""TensorFlow's kernels expect memory that begins at a multiple of this many bytes, and do not check."""


def to_torch(tensor: Any) -> torch.Tensor:
    """A view of an eager tensor. TensorFlow's tensors do not change, so it must not be written to."""
    return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))  # type: ignore[attr-defined]


def to_tensorflow(tensor: torch.Tensor) -> Any:
    """An eager tensor of the same memory, which belongs to TensorFlow from now on; copied if it is not aligned."""
    if tensor.data_ptr() % ALIGN:
        tensor = tensor.clone()
    return tf.experimental.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))  # type: ignore[attr-defined]


@contextmanager
def subnormals() -> Iterator[None]:
    """Compute with subnormal numbers, which TensorFlow's own threads take for zero: results would differ by a bit.

    Threads that start meanwhile, such as those of the kernels, are born with this setting.
    """
    flushing = (torch.tensor(1e-40) * 1.0).item() == 0.0
    if flushing:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushing:
            torch.set_flush_denormal(True)
