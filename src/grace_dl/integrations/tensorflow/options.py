"""Horovod's options for TensorFlow: supported ones, and error messages for the others."""

from __future__ import annotations

import os
from typing import Any, Protocol, runtime_checkable

import horovod.tensorflow as hvd

from ... import settings
from ...algebra.text import as_method
from ...errors import ConfigError
from .handle import TensorHandle

DEFAULTS: dict[str, Any] = {
    "name": None,
    "use_locking": False,
    "device_dense": "",
    "device_sparse": "",
    "compression": hvd.Compression.none,
    "sparse_as_dense": False,
    "backward_passes_per_step": 1,
    "op": hvd.Average,
    "gradient_predivide_factor": 1.0,
    "average_aggregated_gradients": False,
    "num_groups": 0,
    "groups": None,
    "process_set": hvd.global_process_set,
    "scale_local_gradients": True,
}

_OF_TAPES = ("scale_local_gradients",)
"""Options of the tape itself, not of the exchange."""

_REASONS = {
    "use_locking": "it belongs to optimizers of TensorFlow 1",
    "device_dense": "the exchange happens where the gradients are",
    "device_sparse": "the exchange happens where the gradients are",
    "gradient_predivide_factor": "averages are taken in float32 after decoding",
    "num_groups": "gradients are put in buckets of its own",
    "groups": "gradients are put in buckets of its own",
}


def handle_for(grace: Any, given: dict[str, Any]) -> TensorHandle:
    """The handle for these Horovod options; `given` holds only those passed by the user."""
    if isinstance(grace, TensorHandle):
        return grace
    method = as_method(grace)
    options = {**DEFAULTS, **given}
    op, compression = options["op"], options["compression"]
    if op not in (hvd.Average, hvd.Sum):
        what = "hvd.Adasum" if op == hvd.Adasum else repr(op)
        raise ConfigError(
            f"op={what} cannot be combined with grace, which averages or adds decoded gradients; use op=hvd.Average or "
            "hvd.Sum."
        )
    if compression is not hvd.Compression.none:
        raise ConfigError(
            f"compression={getattr(compression, '__name__', compression)!r} and grace are two compressions of one "
            "gradient; leave compression out."
        )
    for option, reason in _REASONS.items():
        if options[option] != DEFAULTS[option]:
            raise ConfigError(
                f"{option}={options[option]!r} cannot be combined with grace: {reason}. Leave it out."
            )
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        raise ConfigError(
            "elastic TensorFlow jobs cannot be combined with grace: the exchange has connections of its own, which "
            "Horovod's TensorFlow half does not renew. Elastic PyTorch jobs can."
        )
    passes = settings.passes(options["backward_passes_per_step"])
    process_set = options["process_set"]
    return TensorHandle(
        method,
        process_set=process_set,
        sum_=op == hvd.Sum,
        sparse_as_dense=options["sparse_as_dense"],
        passes=passes,
        average_passes=options["average_aggregated_gradients"],
        plain=lambda slices: hvd.allreduce(slices, op=op, process_set=process_set),
    )


@runtime_checkable
class Shared(Protocol):
    """An object that carries a method and its handles, so that the tapes of a loop share one handle."""

    method: Any
    handles: dict[Any, Any]


def tape_handle(grace: Any, given: dict[str, Any]) -> TensorHandle:
    """The handle of a tape. A loop creates a tape every step, so state must outlive the tape."""
    if isinstance(grace, TensorHandle):
        extra = sorted(key for key, value in given.items() if value != DEFAULTS[key] and key not in _OF_TAPES)
        if extra:
            raise ConfigError(
                f"{', '.join(extra)} must be known when the handle is made: grace_dl.tensorflow.handle(method, "
                f"{extra[0]}=...); leave it out of the tape."
            )
        return grace
    if not isinstance(grace, Shared):
        raise ConfigError(
            f"grace={grace!r} has no state, and a tape lives for one step only: residuals would be lost. Make a handle "
            "once, handle = grace_dl.tensorflow.handle(method), and pass grace=handle to every tape."
        )
    options = {**DEFAULTS, **given}
    key = (options["process_set"].process_set_id, options["op"], options["sparse_as_dense"])
    found = grace.handles.get(key)
    if found is None or found.closed:
        found = grace.handles[key] = handle_for(grace, given)
    return found
