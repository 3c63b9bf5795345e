"""The settings there are, with their defaults: the tree `configs` that config files fill in."""

from __future__ import annotations

from typing import Any

from .config import Config, Field


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole(default: int | None, least: int = 1, optional: bool = False) -> Field:
    what = f"a whole number, {least} or more" + (", or None" if optional else "")
    return Field(default, what, lambda v: (optional and v is None) or (_whole(v) and (v >= least)))


def number(default: float | None, least: float = 0.0, optional: bool = False) -> Field:
    what = f"a number, {least:g} or more" + (", or None" if optional else "")
    return Field(default, what, lambda v: (optional and v is None) or (_number(v) and (v >= least)))


def flag(default: bool | None, optional: bool = False) -> Field:
    what = "True or False" + (", or None for automatic" if optional else "")
    return Field(default, what, lambda v: isinstance(v, bool) or (optional and v is None))


def text(default: str | None, optional: bool = False) -> Field:
    return Field(
        default,
        "text" + (", or None" if optional else ""),
        lambda v: isinstance(v, str) or (optional and v is None),
    )


def choice(default: str, *options: str) -> Field:
    return Field(default, "one of " + ", ".join(options), lambda v: v in options)


def group(what: str) -> Field:
    return Field(
        None,
        f"a Config of {what}, or None",
        lambda v: v is None or (isinstance(v, Config) and v.target is not None),
    )


DATA = {
    "num_threads_per_worker": whole(0, least=0),
}
"""Threads that prepare batches ahead of training; 0 prepares them in turn."""

TRAIN = {
    # Length. `num_steps` ends a run early, wherever in an epoch that is.
    "num_epochs": whole(10),
    "num_steps": whole(None, optional=True),
    # Samples of one rank and backward pass, and backward passes of a step.
    "batch_size": whole(128),
    "num_batches_per_step": whole(1),
    # What is optimised, and how.
    "criterion": group("a loss"),
    "optimizer": group("an optimizer"),
    "optimize_bn_separately": flag(False),
    "clip_grad_norm": number(None, optional=True),
    # Pictures and weights with channels innermost, which convolutions on CPUs and tensor cores read fastest.
    "channels_last": flag(False),
    # Learning rate: scaled by ranks and passes, reached linearly, then scheduled by epochs or by steps.
    "scale_lr": flag(True),
    "warmup_lr_epochs": number(0),
    "scheduler": group("a schedule"),
    "schedule_lr_per_epoch": flag(True),
    # Exchange of gradients.
    "dgc": flag(False),
    "compression": group("a compression, such as DGCCompressor"),
    "engine": choice("ddp", "ddp", "reducer"),
    # What is measured, kept and shown.
    "metric": text("acc/test_top1"),
    "topk": Field(
        [1, 5],
        "a list of whole numbers, such as [1, 5]",
        lambda v: isinstance(v, (list, tuple)) and bool(v) and all(_whole(k) and k > 0 for k in v),
    ),
    "evaluate_every": whole(1),
    "log_every": whole(10),
    "save_every_steps": whole(None, optional=True),
    # Two checkpoints at least: of ranks that are killed while they save, some have the new one and some the one before.
    "keep": whole(3, least=2),
    "tensorboard": flag(None, optional=True),
    "save_path": text(None, optional=True),
}

ROOT = {
    "seed": whole(42, least=0),
    "device": text("auto"),
    "dataset": group("a data set"),
    "model": group("a model"),
}


class _Root(Config):
    """The whole tree; `clear` restores its groups as well."""

    def clear(self) -> None:
        super().clear()
        self.data = Config(_fields=DATA)
        self.train = Config(_fields=TRAIN)


def _declared(value: Any) -> bool:
    return isinstance(value, Config) and value.target is None


configs: Any = _Root(
    _fields={
        **ROOT,
        "data": Field(None, "a Config with the settings of data loading", _declared),
        "train": Field(None, "a Config with the settings of training", _declared),
    }
)
"""The tree that config files fill in and the command line changes; one a process."""

configs.__dict__["_path"] = "configs"
configs.clear()
