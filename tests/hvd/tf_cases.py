"""What the ranks of Horovod with TensorFlow do."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
import tf_keras
import torch

from hvd.steps import CASES, NAME, record, sequence

ORIGINALS = (hvd.DistributedOptimizer, hvd.DistributedGradientTape)
COMPILE = keras.Model.compile

import grace_dl as grace  # noqa: E402
import grace_dl.tensorflow  # noqa: E402
from grace_dl.errors import ConfigError, UnsupportedError  # noqa: E402
from grace_dl.integrations.tensorflow.tensors import subnormals, to_tensorflow, to_torch  # noqa: E402

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
TOPK = grace.topk(0.05)
EXACT = grace.topk(1.0, dense_below=0)


def leave() -> None:
    hvd.shutdown()


def crossing() -> dict[str, Any]:
    """No copies, in either direction, eagerly and in a graph."""
    x = tf.random.normal((64, 72))
    lent = to_torch(x)
    buffer = torch.randn(1000)
    returned = to_torch(to_tensorflow(buffer[16:48]))
    seen = []

    def look(tensor):
        seen.append(to_torch(tensor).data_ptr())
        return tensor

    tf.function(lambda t: tf.py_function(look, [t], tf.float32))(x)
    flushed, kept = [], []

    def tiny(tensor):
        flushed.append((torch.tensor(1e-40) * 1.0).item() == 0.0)
        with subnormals():
            kept.append((torch.tensor(1e-40) * 1.0).item() > 0.0)
        flushed.append((torch.tensor(1e-40) * 1.0).item() == 0.0)
        return tensor

    tf.function(lambda t: tf.py_function(tiny, [t], tf.float32))(x)
    odd = to_torch(to_tensorflow(buffer[1:33]))
    return {
        "in": lent.data_ptr() == to_torch(x).data_ptr() and bool((lent == torch.tensor(x.numpy())).all()),
        "graph": seen == [lent.data_ptr()],
        "out": returned.data_ptr() == buffer[16:].data_ptr(),
        "subnormals": kept == [True] and flushed[0] == flushed[1],
        "aligned": odd.data_ptr() % 64 == 0 and torch.equal(odd, buffer[1:33]),
    }


def contract() -> dict[str, Any]:
    """Every method with its partners, through a tape: the first steps eagerly, the others in a graph."""
    found = {}
    for case in CASES:
        grads = [tf.constant(g.numpy()) for g in sequence(RANK, SIZE)]
        variable = tf.Variable(tf.zeros(grads[0].shape), name=NAME)
        handle = grace_dl.tensorflow.handle(case.value())

        def step(c, variable=variable, handle=handle):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * c)
            tape = hvd.DistributedGradientTape(tape, grace=handle)
            return tape.gradient(loss, [variable])[0]

        graph = tf.function(step)
        results = [torch.tensor((step if i < 2 else graph)(g).numpy()) for i, g in enumerate(grads)]
        unchanged = all(
            np.array_equal(g.numpy(), s.numpy(), equal_nan=True) for g, s in zip(grads, sequence(RANK, SIZE))
        )
        found[str(case)] = {**record(handle, results), "unchanged": unchanged}
    return found


def _data(seed=0):
    generator = np.random.default_rng(100 * seed + RANK)
    x = generator.normal(size=(128, 40)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64") + 2 * (x[:, 1] > 0)


def _network(k, seed=3):
    k.utils.set_random_seed(seed)
    return k.Sequential([k.Input((40,)), k.layers.Dense(48, activation="tanh"), k.layers.Dense(32, activation="tanh"),
                         k.layers.Dense(4)])  # fmt: skip


def _weights(model):
    return torch.cat([torch.tensor(np.array(w)).view(-1) for w in model.get_weights()])


def _fit(k, make, method, epochs=1, compile_=None, **options):
    model = _network(k)
    optimizer = make()
    if method is not None:
        optimizer = hvd.DistributedOptimizer(optimizer, grace=method, **options)
    loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=["accuracy"], **(compile_ or {}))
    history = model.fit(*_data(), batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return model, history.history["loss"], optimizer


def fit() -> dict[str, Any]:
    """compile/fit of both Keras: replicas after epochs on different data."""
    found = {}
    for name, k in (("keras", keras), ("tf_keras", tf_keras)):
        start = _weights(_network(k))
        for kind in ("SGD", "Adam"):
            model, losses, optimizer = _fit(
                k, lambda k=k, kind=kind: getattr(k.optimizers, kind)(0.01), TOPK, 3
            )
            stats = optimizer.grace.stats()
            found[f"{name} {kind}"] = {
                "weights": _weights(model), "start": start, "losses": losses, "steps": stats.steps,
                "smaller": stats.payload_bytes < stats.dense_bytes, "iterations": int(optimizer.iterations),
                "collectives": stats.collectives, "class": type(optimizer).__name__,
                "state": sorted(optimizer.grace.state_dict()["steps"]),
            }  # fmt: skip
    legacy = tf_keras.optimizers.legacy.SGD(0.05)
    model, losses, _ = _fit(tf_keras, lambda: legacy, TOPK)
    found["legacy"] = {"weights": _weights(model), "start": start, "losses": losses}
    return found


def all_methods() -> dict[str, Any]:
    """Every method once through Keras 3 fit."""
    found = {}
    for case in {case.method: case for case in reversed(CASES)}.values():
        rate = 0.002 if "sign" in case.method and case.method != "efsignsgd" else 0.05
        model, losses, _ = _fit(keras, lambda rate=rate: keras.optimizers.SGD(rate), case.value(), 2)
        found[case.method] = {"weights": _weights(model), "losses": losses}
    return found


def _by_hand(k, method, passes=1, steps=4, op=None, average=False):
    """A loop with plain Horovod's operations, for comparison with the options."""
    model = _network(k)
    optimizer = k.optimizers.SGD(0.1)
    keywords = {"op": op} if op is not None else {}
    if method is not None:
        optimizer = hvd.DistributedOptimizer(
            optimizer, grace=method, backward_passes_per_step=passes,
            average_aggregated_gradients=average, **keywords,
        )  # fmt: skip
    loss_of = k.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        return tape.gradient(
            loss, [getattr(v, "value", v) if k is keras else v for v in model.trainable_variables]
        )

    apply = tf.function(lambda g: optimizer.apply_gradients(zip(g, model.trainable_variables)))
    for step in range(steps):
        total: Any = None
        for part in range(passes):
            x, y = _data(10 * step + part)
            grads = gradients(tf.constant(x), tf.constant(y))
            if method is None:
                total = grads if total is None else [a + b for a, b in zip(total, grads)]
            else:
                apply(grads)
        if method is None:
            scale = 1.0 / passes if average else 1.0
            total = [hvd.allreduce(scale * g, op=op or hvd.Average) for g in total]
            optimizer.apply_gradients(zip(total, model.trainable_variables))
    return _weights(model)


def options() -> dict[str, Any]:
    found = {}
    for name, k in (("keras", keras), ("tf_keras", tf_keras)):
        for what, options in (
            ("average", {}),
            ("sum", {"op": hvd.Sum}),
            ("passes", {"passes": 3}),
            ("mean of passes", {"passes": 3, "average": True}),
        ):
            found[f"{name} {what}"] = [_by_hand(k, method, **options) for method in (None, EXACT, TOPK)]
    return found


def tape() -> dict[str, Any]:
    """Structures, Keras variables, None, slices, local sources, a graph with a loop."""
    found: dict[str, Any] = {}
    handle = grace_dl.tensorflow.handle(EXACT)
    a, b = tf.Variable(tf.ones((40, 40)), name="kernel"), tf.Variable(tf.ones((40,)), name="kernel")
    unused = tf.Variable(1.0, name="unused")
    with tf.GradientTape(persistent=True) as plain:
        loss = tf.reduce_sum(tf.linalg.matvec(a, b)) * (RANK + 1.0)
    tape = hvd.DistributedGradientTape(plain, grace=handle)
    gradients = tape.gradient(loss, {"a": a, "b": [b, unused]})
    found["structure"] = [gradients["a"].numpy(), gradients["b"][0].numpy(), gradients["b"][1]]
    found["single"] = tape.gradient(loss, a).numpy()
    found["keys"] = sorted(handle.state_dict()["steps"])

    with hvd.DistributedGradientTape(tf.GradientTape(), grace=grace_dl.tensorflow.handle(EXACT)) as inside:
        loss = tf.reduce_sum(a * a) * (RANK + 1.0)
    found["with"] = inside.gradient(loss, [a])[0].numpy()

    layer = keras.layers.Dense(4)
    layer.build((None, 40))
    with tf.GradientTape() as t:
        loss = tf.reduce_sum(layer(tf.ones((2, 40)))) * (RANK + 1.0)
    t = hvd.DistributedGradientTape(t, grace=grace_dl.tensorflow.handle(EXACT))
    found["keras variables"] = [g.numpy() for g in t.gradient(loss, layer.trainable_variables)]

    table = tf.Variable(tf.zeros((10, 4)), name="table")
    for as_dense in (False, True):
        with tf.GradientTape() as t:
            loss = tf.reduce_sum(tf.gather(table, [RANK, 9])) * (RANK + 1.0)
        t = hvd.DistributedGradientTape(t, grace=grace_dl.tensorflow.handle(EXACT, sparse_as_dense=as_dense))
        (gradient,) = t.gradient(loss, [table])
        found[f"slices {as_dense}"] = (
            isinstance(gradient, tf.IndexedSlices),
            tf.convert_to_tensor(gradient).numpy(),
        )

    with tf.GradientTape() as t:
        loss = tf.reduce_sum(a * (RANK + 1.0)) + tf.reduce_sum(b * (RANK + 1.0))
    t = hvd.DistributedGradientTape(t, grace=grace_dl.tensorflow.handle(EXACT))
    t.register_local_source(b)
    found["local"] = [g.numpy() for g in t.gradient(loss, [a, b])]
    for dtype in (tf.float64, tf.float16, tf.bfloat16):
        v = tf.Variable(tf.ones((40, 40), dtype), name="v")
        with tf.GradientTape() as t:
            loss = tf.reduce_sum(v * tf.cast(RANK + 1.0, dtype))
        t = hvd.DistributedGradientTape(t, grace=grace_dl.tensorflow.handle(grace.topk(1.0)))
        (gradient,) = t.gradient(loss, [v])
        found[dtype.name] = (gradient.dtype == dtype, tf.cast(gradient, tf.float32).numpy())
    return found


def refused() -> dict[str, Any]:
    found = {}

    def attempt(name, act):
        try:
            act()
            found[name] = ""
        except (ConfigError, UnsupportedError) as error:
            found[name] = str(error)

    for name, options in (
        ("adasum", {"op": hvd.Adasum}), ("compression", {"compression": hvd.Compression.fp16}),
        ("predivide", {"gradient_predivide_factor": 2.0}), ("groups", {"num_groups": 2}),
        ("device", {"device_dense": "/cpu:0"}), ("passes", {"backward_passes_per_step": 0}),
    ):  # fmt: skip
        attempt(name, lambda o=options: hvd.DistributedOptimizer(keras.optimizers.SGD(), grace=TOPK, **o))
    attempt("tape", lambda: grace_dl.tensorflow.handle(TOPK, op=hvd.Adasum))
    handle = grace_dl.tensorflow.handle(TOPK)
    attempt(
        "late option",
        lambda: hvd.DistributedGradientTape(tf.GradientTape(), grace=handle, sparse_as_dense=True),
    )
    attempt("stateless tape", lambda: hvd.DistributedGradientTape(tf.GradientTape(), grace=TOPK))
    attempt("no method", lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), grace=3))
    attempt(
        "version 1",
        lambda: hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1), grace=TOPK),
    )
    for name, k in (("jit keras", keras), ("jit tf_keras", tf_keras)):
        attempt(name, lambda k=k: _fit(k, k.optimizers.SGD, TOPK, compile_={"jit_compile": True}))
    keras.config.set_dtype_policy("mixed_float16")
    attempt("mixed", lambda: _fit(keras, keras.optimizers.SGD, TOPK))
    keras.config.set_dtype_policy("float32")
    return found


def xla() -> dict[str, Any]:
    """jit_compile="auto" where Keras would choose XLA."""
    before = keras.Model._resolve_auto_jit_compile
    keras.Model._resolve_auto_jit_compile = lambda self: True
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model, _, _ = _fit(keras, keras.optimizers.SGD, TOPK)
    finally:
        keras.Model._resolve_auto_jit_compile = before
    return {"jit": model.jit_compile, "notices": [str(w.message) for w in caught if "XLA" in str(w.message)]}


def loss_scale() -> dict[str, Any]:
    """Keras' own loss scaling inside the exchange; one rank overflows."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model, _, optimizer = _fit(
            keras,
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**24),
            TOPK,
        )
        scale = float(optimizer.dynamic_scale.numpy())
    finally:
        keras.config.set_dtype_policy("float32")
    return {"weights": _weights(model), "scale": scale, "told": optimizer.grace.session.state.loss_scale}


def saving() -> dict[str, Any]:
    """A model saved with our optimizer loads without us; ours goes on from a loaded one."""
    model, _, optimizer = _fit(keras, lambda: keras.optimizers.Adam(0.01), TOPK)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
    again = hvd.DistributedOptimizer(loaded.optimizer, grace=TOPK)
    state = optimizer.grace.state_dict()
    again.grace.load_state_dict(state)
    return {
        "class": type(loaded.optimizer) is keras.optimizers.Adam,
        "weights": torch.equal(_weights(model), _weights(loaded)),
        "iterations": (int(optimizer.iterations), int(again.iterations)),
        "owed": {name: again.grace.session.residual(name) is not None for name in state["steps"]},
    }


def disable() -> dict[str, Any]:
    taught = hvd.DistributedOptimizer is not ORIGINALS[0] and hvd.DistributedGradientTape is not ORIGINALS[1]
    hvd.DistributedOptimizer(keras.optimizers.SGD(), grace=TOPK)
    compile_taught = keras.Model.compile is not COMPILE
    grace_dl.tensorflow.disable()
    import horovod.tensorflow.keras as hvdk

    restored = (hvd.DistributedOptimizer, hvd.DistributedGradientTape) == ORIGINALS
    unknown = []
    for make in (
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), grace=1),
        lambda: hvd.DistributedGradientTape(tf.GradientTape(), grace=1),
        lambda: hvdk.DistributedOptimizer(keras.optimizers.SGD(), grace=1),
    ):
        try:
            make()
        except TypeError:
            unknown.append(True)
    compile_restored = compile_taught and keras.Model.compile is COMPILE
    v = tf.Variable([1.0, 2.0])
    answers = []
    for again in (False, True):
        if again:
            grace_dl.tensorflow.enable()
        with tf.GradientTape() as t:
            loss = tf.reduce_sum(v * (RANK + 1.0))
        answers.append(hvd.DistributedGradientTape(t).gradient(loss, [v])[0].numpy().tolist())
    return {
        "taught": taught, "restored": restored, "unknown": len(unknown), "compile": compile_restored,
        "plain": answers, "enabled": grace_dl.tensorflow.enabled(),
    }  # fmt: skip
