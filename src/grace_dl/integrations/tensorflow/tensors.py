"""Conversion between TensorFlow and PyTorch tensors that share memory, through DLPack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import torch

ALIGN = 64
"""TensorFlow's kernels expect this memory alignment in bytes, and do not check it."""


def to_torch(tensor: Any) -> torch.Tensor:
    """A view of an eager tensor. TensorFlow's tensors are immutable, so the view must not be written to."""
    return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))  # type: ignore[attr-defined]


def to_tensorflow(tensor: torch.Tensor) -> Any:
    """An eager tensor that takes over the same memory; copied if the memory is not aligned."""
    if tensor.data_ptr() % ALIGN:
        tensor = tensor.clone()
    return tf.experimental.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))  # type: ignore[attr-defined]


@contextmanager
def subnormals() -> Iterator[None]:
    """Enable subnormal numbers, which TensorFlow's own threads flush to zero, so that results stay bit-identical.

    Threads started within this context, such as those of the kernels, inherit the setting.
    """
    flushing = (torch.tensor(1e-40) * 1.0).item() == 0.0
    if flushing:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushing:
            torch.set_flush_denormal(True)
