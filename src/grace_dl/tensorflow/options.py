"""Horovod's options for TensorFlow: those that go together with compression, and words for those that do not."""

from __future__ import annotations

import os
from typing import Any

import horovod.tensorflow as hvd

from ..communicator.base import Communicator
from ..errors import ConfigError
from .reducer import TensorReducer

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

_REASONS = {
    "use_locking": "it belongs to optimizers of TensorFlow 1",
    "device_dense": "the exchange happens where the gradients are",
    "device_sparse": "the exchange happens where the gradients are",
    "gradient_predivide_factor": "averages are taken in float32 after decoding",
    "num_groups": "gradients are put in buckets of its own",
    "groups": "gradients are put in buckets of its own",
}


def reducer(grace: Any, given: dict[str, Any]) -> TensorReducer:
    """What exchanges gradients under these options of Horovod's; `given` lacks those that were left out."""
    if not isinstance(grace, Communicator):
        raise ConfigError(
            f"grace={grace!r} is no communicator; build one with grace_from_params({{'compressor': 'topk'}})."
        )
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
    passes = options["backward_passes_per_step"]
    if passes < 1:
        raise ConfigError(f"backward_passes_per_step={passes} must be 1 or more.")
    process_set = options["process_set"]
    # A loop makes a tape every step: they share one reducer, which optimizers, that count passes, do not.
    key = ("tensorflow", process_set.process_set_id, op, options["sparse_as_dense"])
    shared = grace.__dict__.setdefault("_reducers", {}) if passes == 1 else {}
    if key in shared:
        return shared[key]
    shared[key] = made = TensorReducer(
        grace,
        process_set=process_set,
        sum_=op == hvd.Sum,
        sparse_as_dense=options["sparse_as_dense"],
        passes=passes,
        average_passes=options["average_aggregated_gradients"],
        plain=lambda slices: hvd.allreduce(slices, op=op, process_set=process_set),
    )
    return made
