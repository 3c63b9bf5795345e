"""Kernels in Triton, for CUDA tensors: thin wrappers that check arguments and launch what `programs` holds.

What is not written in Triton, or not for a given dtype or size, is served by the reference kernels. On the CPU
they run in Triton's interpreter only. They have not been timed on a GPU.
"""

from __future__ import annotations

from ..reference import *
from .basic import *
from .blocks import *
from .launch import ready
from .randomness import *
from .signs import *
from .sparse import *
