"""`hvd.DistributedGradientTape(tape, grace=...)`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...errors import ConfigError
from .handle import TensorHandle
from .options import tape_handle


class GraceTape(tf.GradientTape):  # type: ignore[misc]
    """A tape whose gradients are averaged over ranks."""

    _grace: TensorHandle
    _local: set[int]
    _scale_local: bool

    @property
    def grace(self) -> TensorHandle:
        """The handle in use, shared by the tapes of a loop."""
        return self._grace

    def register_local_source(self, source: Any) -> None:
        """Keep this source's gradient on its rank, divided by the number of ranks as Horovod does."""
        self._local.add(_identity(source))

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources = tf.nest.flatten(sources)
        flat = (
            [gradients]
            if len(flat_sources) == 1 and not tf.nest.is_nested(sources)
            else _flat(gradients, sources)
        )
        shared = [place for place, s in enumerate(flat_sources) if _identity(s) not in self._local]
        _, reduced = self._grace([flat[p] for p in shared], [flat_sources[p] for p in shared])
        size = self._grace.session.transport.size if self._grace.included else 1
        for place, gradient in enumerate(flat):
            if place not in shared and gradient is not None and self._scale_local:
                flat[place] = tf.math.scalar_mul(1.0 / size, gradient)
        for place, gradient in zip(shared, reduced):
            flat[place] = gradient
        return tf.nest.pack_sequence_as(sources, flat) if tf.nest.is_nested(sources) else flat[0]


def _flat(gradients: Any, sources: Any) -> list[Any]:
    # Gradients may be IndexedSlices, which tf.nest must not expand, and None, which it keeps.
    return list(tf.nest.flatten(gradients, expand_composites=False))


def _identity(source: Any) -> int:
    """The identity of a source; for a Keras 3 variable, that of the TensorFlow variable inside it."""
    return id(getattr(source, "_value", source) if hasattr(source, "path") else source)


def distributed_tape(gradtape: Any, grace: Any, **options: Any) -> GraceTape:
    """The tape that `hvd.DistributedGradientTape(gradtape, grace=grace)` returns."""
    if not isinstance(gradtape, tf.GradientTape):
        raise ConfigError(f"a tf.GradientTape is needed, not {type(gradtape).__name__}.")
    tape = GraceTape.__new__(GraceTape)
    # Shares the recording and the persistence of the given tape.
    tape.__dict__.update(vars(gradtape))
    tape._local = set()
    tape._scale_local = options.get("scale_local_gradients", True)
    tape._grace = tape_handle(grace, options)
    return tape
