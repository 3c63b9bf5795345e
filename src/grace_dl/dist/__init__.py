"""PyTorch's own distributed training: `torch.distributed` and `DistributedDataParallel`.

`grace_dl.dist.compressor`, `.memory`, `.communicator` and `.helper` are other names of the one implementation.
"""

from .._alias import alias

alias(__name__)
