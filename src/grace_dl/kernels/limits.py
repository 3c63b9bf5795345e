"""Magnitudes at which arithmetic needs care."""

from __future__ import annotations

import math

import torch

LARGE = {
    torch.float16: math.inf,
    torch.bfloat16: 2.0**32,
    torch.float32: 2.0**32,
    torch.float64: 2.0**61,
}
"""Elements from here on are looked after: adding one to state and subtracting it again loses what was there before.

Gradients of a sound training are smaller, even those of a scaled loss. float16 is computed in float32, where all its
numbers are small.
"""

HUGE = {
    torch.float16: math.inf,
    torch.bfloat16: 2.0**100,
    torch.float32: 2.0**100,
    torch.float64: 2.0**1000,
}
"""Elements from here on count as infinite on a device, which cannot be asked whether a sum has overflowed."""
