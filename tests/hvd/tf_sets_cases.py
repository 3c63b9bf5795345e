"""Process sets with TensorFlow: its half of Horovod knows them, ours learns them."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import grace_dl.tensorflow  # noqa: F401
from grace_dl import grace_from_params


def leave() -> None:
    hvd.shutdown()


def process_sets() -> dict:
    single, pair = hvd.ProcessSet([1]), hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[single, pair])
    found = {}
    for name, chosen in (("pair", pair), ("all", hvd.global_process_set)):
        v = tf.Variable(tf.zeros((40, 40)), name="v")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v) * (hvd.rank() + 1.0)
        grace = grace_from_params({"compressor": "int8"})
        tape = hvd.DistributedGradientTape(tape, grace=grace, process_set=chosen)
        (gradient,) = tape.gradient(loss, [v])
        found[name] = float(np.mean(gradient.numpy()))
    return found
