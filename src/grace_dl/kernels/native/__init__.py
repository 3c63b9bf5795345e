"""The compiled CPU kernels: thin wrappers that check arguments and pass addresses to `grace_dl._native`.

Functions, dtypes and devices without a compiled kernel fall back to the reference.
"""

from __future__ import annotations

from ..reference import *
from .adaq import *
from .basic import *
from .blocks import *
from .cast import *
from .chunks import *
from .combine import *
from .dct import *
from .eden import *
from .inceptionn import *
from .lowrank import *
from .signs import *
from .sketch import *
from .sparse import *
from .tables import *
from .ternary import *
from .validity import *
