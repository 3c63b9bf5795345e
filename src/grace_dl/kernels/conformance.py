"""For the type checker only: each backend implements all of `Kernels`. Nothing imports this module."""

from __future__ import annotations

from . import native, reference, triton
from .interface import Kernels

BACKENDS: tuple[Kernels, ...] = (reference, native, triton)
