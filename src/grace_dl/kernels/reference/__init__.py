"""The reference kernels: plain torch on any device. Every other backend is bit-identical to them."""

from __future__ import annotations

from .adaq import *
from .basic import *
from .blocks import *
from .cast import *
from .chunks import *
from .combine import *
from .dct import *
from .eden import *
from .inceptionn import *
from .indices import *
from .lowrank import *
from .randomness import *
from .signs import *
from .sketch import *
from .sparse import *
from .tables import *
from .ternary import *
from .validity import *
