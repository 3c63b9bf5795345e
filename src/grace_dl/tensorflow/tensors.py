"""TensorFlow's tensors seen by PyTorch and back: the same memory, by DLPack."""

from __future__ import annotations

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
