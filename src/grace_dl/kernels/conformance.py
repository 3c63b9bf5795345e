"""For the type checker alone: each backend offers everything in `Kernels`. Nothing imports this module."""

from __future__ import annotations

from . import native, reference, triton
from .interface import Kernels

BACKENDS: tuple[Kernels, ...] = (reference, native, triton)
