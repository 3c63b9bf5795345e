"""Teaching Horovod's TensorFlow modules the keyword `grace`, at run time, and taking it back."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from typing import Any

from ..communicator.base import Communicator

_originals: dict[tuple[str, str], Any] = {}
_OPTIMIZERS = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")


def enable() -> bool:
    """Let Horovod understand `grace=`; False where Horovod for TensorFlow is not installed."""
    if _originals:
        return True
    if importlib.util.find_spec("horovod") is None or importlib.util.find_spec("tensorflow") is None:
        return False
    try:
        importlib.import_module("horovod.tensorflow")
    except ImportError:  # built for another framework only
        return False
    _teach("horovod.tensorflow", "DistributedGradientTape", "tape", "distributed_tape")
    for name in _OPTIMIZERS:
        try:
            importlib.import_module(name)
        except ImportError:  # a Keras that this Horovod does not know
            continue
        _teach(name, "DistributedOptimizer", "keras", "distributed_optimizer")
    return True


def _teach(module_name: str, attribute: str, ours: str, function: str) -> None:
    module = sys.modules[module_name]
    original = getattr(module, attribute)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def taught(*arguments: Any, grace: Any = None, **keywords: Any) -> Any:
        # The original GRACE took `grace` as second argument, by position too.
        if grace is None and len(arguments) > 1 and isinstance(arguments[1], Communicator):
            grace, arguments = arguments[1], (arguments[0], *arguments[2:])
        if grace is None:
            return original(*arguments, **keywords)
        given = dict(signature.bind(*arguments, **keywords).arguments)
        target = given.pop(next(iter(signature.parameters)))
        implementation = importlib.import_module(f"grace_dl.tensorflow.{ours}")
        return getattr(implementation, function)(target, grace, **given)

    _originals[module_name, attribute] = original
    setattr(module, attribute, taught)


def disable() -> None:
    """Leave Horovod and Keras as they were. Optimizers and tapes made with `grace` go on working."""
    for (module_name, attribute), original in _originals.items():
        setattr(sys.modules[module_name], attribute, original)
    _originals.clear()
    ours = sys.modules.get("grace_dl.tensorflow.keras")
    if ours is not None:
        ours.unguard()


def enabled() -> bool:
    """Whether Horovod understands `grace` at present."""
    return bool(_originals)
