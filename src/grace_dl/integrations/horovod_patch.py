"""Patch Horovod's functions in memory so that they accept the keyword `grace`.

`hvd.DistributedOptimizer(optimizer, grace=...)` and `hvd.DistributedGradientTape(tape, grace=...)` exchange gradients with
GRACE. A call without the keyword behaves as before. The patch can be removed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from typing import Any

from ..algebra.text import carries_method

_OPTIMIZER, _TAPE = "DistributedOptimizer", "DistributedGradientTape"
_TARGETS: dict[str, dict[tuple[str, str], str]] = {
    "torch": {
        ("horovod.torch.optimizer", _OPTIMIZER): "horovod_torch:distributed_optimizer",
        ("horovod.torch", _OPTIMIZER): "horovod_torch:distributed_optimizer",
    },
    "tensorflow": {
        ("horovod.tensorflow", _TAPE): "tensorflow.tape:distributed_tape",
        ("horovod.tensorflow", _OPTIMIZER): "tensorflow.keras:distributed_optimizer",
        ("horovod.tensorflow.keras", _OPTIMIZER): "tensorflow.keras:distributed_optimizer",
        ("horovod.keras", _OPTIMIZER): "tensorflow.keras:distributed_optimizer",
    },
}
"""Horovod functions by framework, and their replacements."""


class Patch:
    """The patched functions of one framework."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._originals: dict[tuple[str, str], Any] = {}

    def enable(self) -> bool:
        """Make Horovod accept `grace=`. Return False if Horovod is not installed for this framework."""
        if self._originals:
            return True
        if any(importlib.util.find_spec(name) is None for name in ("horovod", self._framework)):
            return False
        try:
            importlib.import_module(f"horovod.{self._framework}")
        except ImportError:  # built for another framework only
            return False
        for (module_name, attribute), path in _TARGETS[self._framework].items():
            try:
                module = importlib.import_module(module_name)
            except ImportError:  # a Keras that this Horovod does not support
                continue
            original = getattr(module, attribute)
            self._originals[module_name, attribute] = original
            setattr(module, attribute, _accepting_grace(original, path))
        return True

    def disable(self) -> None:
        """Restore Horovod's own functions. Optimizers and tapes created with `grace` keep working."""
        for (module_name, attribute), original in self._originals.items():
            setattr(importlib.import_module(module_name), attribute, original)
        if self._originals and self._framework == "tensorflow":
            importlib.import_module(f"{__package__}.tensorflow.keras").unguard()
        self._originals.clear()

    def enabled(self) -> bool:
        """Whether Horovod currently accepts `grace=`."""
        return bool(self._originals)


def _accepting_grace(original: Any, path: str) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def patched(*arguments: Any, grace: Any = None, **keywords: Any) -> Any:
        # The original GRACE also accepted `grace` as the second positional argument.
        if grace is None and len(arguments) > 1 and carries_method(arguments[1]):
            grace, arguments = arguments[1], (arguments[0], *arguments[2:])
        if grace is None:
            return original(*arguments, **keywords)
        given = dict(signature.bind(*arguments, **keywords).arguments)
        target = given.pop(next(iter(signature.parameters)))
        module, _, function = path.partition(":")
        return getattr(importlib.import_module(f"{__package__}.{module}"), function)(target, grace, **given)

    return patched


torch = Patch("torch")
tensorflow = Patch("tensorflow")
