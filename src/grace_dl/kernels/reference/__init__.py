"""The reference kernels: plain torch, any device, the oracle that every other backend equals bit for bit."""

from __future__ import annotations

from .bits import *
from .dense import *
from .randomness import *
from .reduce import *
from .sparse import *
