"""Horovod with TensorFlow 2 and Keras.

Importing this package, or anything below it, teaches `DistributedOptimizer` and `DistributedGradientTape` of
`horovod.tensorflow`, `horovod.tensorflow.keras` and `horovod.keras` the keyword `grace`; a call without it behaves as
before, `disable()` takes the keyword away again. `grace_dl.tensorflow.compressor`, `.memory`, `.communicator` and `.helper`
are other names of the one implementation: TensorFlow's tensors are lent to it through DLPack.
"""

from .._alias import alias

alias(__name__)

from .teach import disable, enable, enabled  # noqa: E402

enable()

__all__ = ["disable", "enable", "enabled"]
