"""In-place clipping of a single gradient; each function returns the gradient and can be used as `gradient_clipping`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import ConfigError
from ...transport import detect


def clip_grad_norm_(grad: Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale `grad` down to the norm `max_norm`, if it is larger.

    >>> clip_grad_norm_(torch.tensor([3.0, 4.0]), 1.0).tolist()
    [0.6000..., 0.8000...]
    """
    _positive("max_norm", max_norm)
    return _limit(grad, float(torch.linalg.vector_norm(grad.detach(), norm_type)), max_norm)


def clip_grad_value_(grad: Tensor, clip_value: float) -> Tensor:
    """Limit every element to [-clip_value, clip_value].

    >>> clip_grad_value_(torch.tensor([3.0, -4.0, 0.5]), 1.0).tolist()
    [1.0, -1.0, 0.5]
    """
    _positive("clip_value", clip_value)
    grad.detach().clamp_(-clip_value, clip_value)
    return grad


def clip_grad_value_by_global_norm_(grad: Tensor, name: str | None = None) -> Tensor:
    """Limit every element to this gradient's norm (root mean square over all ranks). All ranks must call it."""
    norm = _global_norm(grad)
    grad.detach().clamp_(-norm, norm)
    return grad


def clip_grad_norm_2_by_global_(grad: Tensor, max_norm: float, name: str | None = None) -> Tensor:
    """Scale `grad` so that its norm (root mean square over all ranks) becomes `max_norm`. All ranks must call it."""
    _positive("max_norm", max_norm)
    return _limit(grad, _global_norm(grad), max_norm)


clip_grad_value_by_global_norm_.exchanges = True  # type: ignore[attr-defined]
clip_grad_norm_2_by_global_.exchanges = True  # type: ignore[attr-defined]


def _limit(grad: Tensor, norm: float, max_norm: float) -> Tensor:
    if norm > max_norm:
        grad.detach().mul_(max_norm / norm)
    return grad


def _global_norm(grad: Tensor) -> float:
    square = grad.detach().double().square().sum().reshape(1)
    transport = detect()
    transport.allreduce(square).wait()
    return math.sqrt(float(square) / transport.size)


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name}={value!r} must be positive: it is the largest that is let through.")
