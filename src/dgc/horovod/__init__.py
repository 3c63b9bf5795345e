"""The optimizer that exchanges gradients, under Horovod, torch.distributed or alone."""

from .compression import Compression as Compression
from .compression import Compressor as Compressor
from .optimizer import DistributedOptimizer as DistributedOptimizer
