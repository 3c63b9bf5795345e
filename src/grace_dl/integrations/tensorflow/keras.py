"""`hvd.DistributedOptimizer(optimizer, grace=...)` for Keras 3 and for Keras 2 (tf_keras).

Keras 3 passes every gradient to the optimizer's `apply`, Keras 2 to `apply_gradients`. The class created here exchanges
them there and then calls the base optimizer. It keeps that class's name and module, so saved models load without GRACE or
Horovod.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...errors import ConfigError
from .handle import TensorHandle
from .options import handle_for

_MARK = "_grace_handle"


def distributed_optimizer(optimizer: Any, grace: Any, **options: Any) -> Any:
    """The optimizer that `hvd.DistributedOptimizer(optimizer, grace=grace)` returns."""
    family = _family(optimizer)
    if hasattr(optimizer, _MARK):
        raise ConfigError("this optimizer exchanges its gradients by GRACE already; wrap it once.")
    cls = (_keras3 if family == "keras" else _keras2)(type(optimizer))
    config = optimizer.get_config()
    if options.get("name"):
        config["name"] = options["name"]
    made = cls.from_config(config)
    object.__setattr__(made, _MARK, handle_for(grace, options))
    _copy_state(optimizer, made)
    guard_compile(family)
    return made


def _family(optimizer: Any) -> str:
    """Which Keras an optimizer belongs to; imports neither."""
    for family in ("keras", "tf_keras"):
        module = sys.modules.get(family)
        kinds = [
            getattr(module, "optimizers", None),
            getattr(getattr(module, "optimizers", None), "legacy", None),
        ]
        for kind in kinds:
            base = getattr(kind, "Optimizer", None)
            if isinstance(base, type) and isinstance(optimizer, base):
                return family
    raise ConfigError(
        f"{type(optimizer).__module__}.{type(optimizer).__name__} is no optimizer of Keras 3 or tf_keras; use one of "
        "those, or hvd.DistributedGradientTape(tape, grace=...), which goes with any optimizer."
    )


class _Grace:
    """Shared by both kinds."""

    @property
    def grace(self) -> TensorHandle:
        """The handle in use."""
        found: TensorHandle = getattr(self, _MARK)
        return found


def _keras3(base: type) -> Any:
    class Distributed(_Grace, base):  # type: ignore[valid-type, misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            variables = list(
                self._trainable_variables if trainable_variables is None else trainable_variables
            )
            if not self.built:
                # Variables cannot be created inside a condition.
                with tf.init_scope():
                    self.build(variables)
            exchange = getattr(self, _MARK)
            complete, reduced = exchange(list(grads), variables, getattr(self, "dynamic_scale", None))
            go_on = super().apply
            return _when(complete, lambda: go_on(reduced, trainable_variables))

    return _named_as(Distributed, base)


def _keras2(base: type) -> Any:
    class Distributed(_Grace, base):  # type: ignore[valid-type, misc]
        def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **keywords: Any) -> Any:
            grads, variables = zip(*grads_and_vars)
            scale = self.loss_scale if hasattr(self, "inner_optimizer") else None
            exchange = getattr(self, _MARK)
            complete, reduced = exchange(list(grads), variables, scale)
            go_on = super().apply_gradients
            if complete is not True and hasattr(self, "build"):
                with tf.init_scope():
                    self.build(variables)
            _when(complete, lambda: go_on(zip(reduced, variables), *arguments, **keywords))
            return self.iterations

    return _named_as(Distributed, base)


def _when(complete: Any, act: Callable[[], Any]) -> Any:
    """Call `act` if the step is complete; in a graph the condition is evaluated at run time."""
    if complete is True:
        return act()
    if tf.executing_eagerly():
        return act() if bool(complete) else None

    def acted() -> Any:
        act()
        return tf.constant(True)

    tf.cond(complete, acted, lambda: tf.constant(False))
    return None


def _named_as(cls: Any, base: type) -> Any:
    cls.__name__, cls.__qualname__, cls.__module__ = base.__name__, base.__qualname__, base.__module__
    return cls


def _copy_state(before: Any, after: Any) -> None:
    """Copy the state of an optimizer, for example one from a checkpoint."""
    known = getattr(before, "_trainable_variables", None)
    if not getattr(before, "built", False) or not known:
        return
    after.build(known)
    for mine, theirs in zip(after.variables, before.variables):
        mine.assign(theirs)


# compile() --------------------------------------------------------------------------------------------

_guarded: dict[str, tuple[type, Any]] = {}


def guard_compile(family: str) -> None:
    """Patch this Keras's `compile` to disable XLA, which cannot compile the exchange; `unguard` removes the patch."""
    if family in _guarded:
        return
    owner = (
        importlib.import_module("keras.src.trainers.trainer").Trainer
        if family == "keras"
        else importlib.import_module("tf_keras").Model
    )
    original = owner.compile

    @functools.wraps(original)
    def compile_(self: Any, optimizer: Any = "rmsprop", *arguments: Any, **keywords: Any) -> Any:
        if hasattr(optimizer, _MARK):
            keywords = _without_xla(self, optimizer, family, keywords)
        return original(self, optimizer, *arguments, **keywords)

    owner.compile = compile_
    _guarded[family] = (owner, original)


def unguard() -> None:
    """Restore Keras's own `compile`."""
    for owner, original in _guarded.values():
        owner.compile = original  # type: ignore[attr-defined]
    _guarded.clear()


def _without_xla(model: Any, optimizer: Any, family: str, keywords: dict[str, Any]) -> dict[str, Any]:
    chosen = keywords.get("jit_compile", "auto" if family == "keras" else None)
    if chosen is True:
        raise ConfigError(
            "jit_compile=True cannot be combined with grace: XLA compiles the training step as a whole and cannot hold "
            "the exchange, which is a Python call. Leave jit_compile out."
        )
    policy = getattr(getattr(model, "dtype_policy", None), "name", "")
    if family == "keras" and policy == "mixed_float16" and not hasattr(optimizer, "inner_optimizer"):
        raise ConfigError(
            "with mixed_float16 Keras would put its loss scaling around the exchange, and ranks would skip steps each on "
            "its own; put it inside: "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer), grace=grace)."
        )
    if chosen == "auto":
        if not keywords.get("run_eagerly") and model._resolve_auto_jit_compile():
            warnings.warn(
                'jit_compile="auto" becomes False: XLA cannot hold the exchange of gradients.', stacklevel=4
            )
        return {**keywords, "jit_compile": False}
    return keywords
