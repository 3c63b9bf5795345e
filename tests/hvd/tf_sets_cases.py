"""Process sets with TensorFlow: its half of Horovod knows them, ours learns them."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import grace_dl as grace
import grace_dl.tensorflow


def leave() -> None:
    hvd.shutdown()


def process_sets() -> dict[str, Any]:
    single, pair = hvd.ProcessSet([1]), hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[single, pair])
    found = {}
    for name, chosen in (("pair", pair), ("all", hvd.global_process_set)):
        v = tf.Variable(tf.zeros((40, 40)), name="v")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v) * (hvd.rank() + 1.0)
        handle = grace_dl.tensorflow.handle(grace.int8(), process_set=chosen)
        tape = hvd.DistributedGradientTape(tape, grace=handle)
        (gradient,) = tape.gradient(loss, [v])
        found[name] = float(np.mean(gradient.numpy()))
    return found
