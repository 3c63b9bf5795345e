"""Deep gradient compression under the names of its authors' code; part of GRACE (`grace_dl`).

from dgc.compression import DGCCompressor
from dgc.horovod.optimizer import DistributedOptimizer
from dgc.memory import DGCSGDMemory
from dgc.optim import DGCSGD
"""
