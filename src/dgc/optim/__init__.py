"""The optimizer that goes with DGC's memory."""

from .sgd import DGCSGD as DGCSGD
