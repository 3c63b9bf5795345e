"""Kernels in Triton, for CUDA tensors: thin wrappers that check arguments and launch `programs`.

Functions, dtypes and sizes without a Triton kernel fall back to the reference. On the CPU the kernels run only in
Triton's interpreter. They have not been timed on a GPU.
"""

from __future__ import annotations

from ..reference import *
from .basic import *
from .blocks import *
from .cast import *
from .dgc import *
from .indices import *
from .launch import ready
from .randomness import *
from .signs import *
from .sparse import *
from .tables import *
from .ternary import *
