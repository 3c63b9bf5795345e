"""Helper functions that the original GRACE's compressors export, for PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..compressor.lowrank import orthonormalise
from ..compressor.sparse import check_ratio
from ..kernels.wire import selected


def largest(tensor: Tensor, compress_ratio: float, kernel: str = "torch") -> tuple[Tensor, Tensor]:
    """Values and flat indices of the largest magnitudes.

    >>> largest(torch.tensor([1.0, -3.0, 2.0]), 0.3)
    (tensor([-3.]), tensor([1]))
    """
    flat = tensor.reshape(-1)
    places = flat.abs().topk(selected(check_ratio(compress_ratio), flat.numel()), sorted=False).indices
    return flat[places], places


def drawn(tensor: Tensor, compress_ratio: float) -> tuple[Tensor, Tensor]:
    """Random indices, drawn from PyTorch's generator, and the values there."""
    flat = tensor.reshape(-1)
    count = selected(check_ratio(compress_ratio), flat.numel())
    places = torch.randperm(flat.numel(), device=flat.device)[:count]
    return places, flat[places]


def desparsify(tensors: Sequence[Tensor], numel: int) -> Tensor:
    """A flat tensor of `numel` elements from values and their indices; zero elsewhere."""
    values, places = tensors
    return torch.zeros(numel, dtype=values.dtype, device=values.device).scatter_(0, places, values)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Make the columns of a matrix orthonormal, in place."""
    (rows,) = orthonormalise([matrix.t().contiguous()])
    return matrix.copy_(rows.t())
