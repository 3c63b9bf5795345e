"""Horovod with PyTorch.

Importing this package, or anything below it, teaches `horovod.torch.DistributedOptimizer` the keyword `grace`; a call
without it behaves as before, `disable()` takes the keyword away again. `grace_dl.torch.compressor`, `.memory`,
`.communicator` and `.helper` are other names of the one implementation.
"""

from .._alias import alias

alias(__name__)

from .teach import disable, enable, enabled  # noqa: E402

enable()

__all__ = ["disable", "enable", "enabled"]
