"""The reference kernels: plain torch, any device, the oracle that every other backend equals bit for bit."""

from __future__ import annotations

from .bits import *
from .dense import *
from .eden import *
from .inceptionn import *
from .indices import *
from .randomness import *
from .reduce import *
from .sketch import *
from .sparse import *
