"""Teaching Horovod's PyTorch module the keyword `grace`, at run time, and taking it back."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from ..communicator.base import Communicator

_original: Any = None


def enable() -> bool:
    """Let `hvd.DistributedOptimizer` understand `grace=`; False where Horovod for PyTorch is not installed."""
    global _original
    if _original is not None:
        return True
    if importlib.util.find_spec("horovod") is None:
        return False
    try:
        import horovod.torch as hvd
        from horovod.torch import optimizer as module
    except ImportError:  # built for another framework only
        return False
    original = module.DistributedOptimizer

    @functools.wraps(original)
    def distributed_optimizer(*arguments: Any, grace: Any = None, **keywords: Any) -> Any:
        # The original GRACE took `grace` as second argument, by position too.
        if grace is None and len(arguments) > 1 and isinstance(arguments[1], Communicator):
            grace, arguments = arguments[1], (arguments[0], *arguments[2:])
        if grace is None:
            return original(*arguments, **keywords)
        from .optimizer import distributed

        return distributed(grace, *arguments, **keywords)

    _original = original
    module.DistributedOptimizer = distributed_optimizer
    hvd.DistributedOptimizer = distributed_optimizer
    return True


def disable() -> None:
    """Leave Horovod as it was. Optimizers made with `grace` go on working."""
    global _original
    if _original is None:
        return
    import horovod.torch as hvd
    from horovod.torch import optimizer as module

    module.DistributedOptimizer = _original
    hvd.DistributedOptimizer = _original
    _original = None


def enabled() -> bool:
    """Whether Horovod understands `grace` at present."""
    return _original is not None
