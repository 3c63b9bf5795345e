"""Lightning: `Trainer(callbacks=[GraceCallback("topk:0.01")])`, and the same with Fabric."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from .prepared import Attachment, missing

try:
    from lightning.pytorch import Callback
except ImportError as _error:
    raise missing("Lightning", "lightning", _error) from _error


class GraceCallback(Attachment, Callback):  # type: ignore[misc]
    """Compress the gradients of a model that Lightning trains.

    For `Trainer` and `Fabric`, with the strategy `ddp` in any of its forms; a single process trains as without it.
    `Trainer` saves the state of all ranks in its checkpoints and restores it. With Fabric, save the callback like the
    model: `fabric.save(path, {"model": model, "optimizer": optimizer, "grace": callback})`.

    >>> callback = GraceCallback("topk:0.01")
    >>> trainer = Trainer(callbacks=[callback], strategy="ddp", devices=2)  # doctest: +SKIP
    >>> trainer.fit(model, loader)  # doctest: +SKIP
    >>> print(callback.handle.stats())  # doctest: +SKIP
    """

    remedy = 'use strategy="ddp"'

    # Trainer ------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._saved = None  # of an earlier run that did not train

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.state_key not in checkpoint.get("callbacks", {}):
            warnings.warn("the checkpoint has no state of GRACE; residuals start from zero.", stacklevel=2)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.attach(trainer.strategy.model, getattr(trainer.precision_plugin, "scaler", None))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.restore()  # Lightning loads callbacks before or after on_fit_start, depending on the strategy

    # Fabric -------------------------------------------------------------------------------------------

    def on_after_setup(self, fabric: Any, module: torch.nn.Module) -> None:
        self.attach(module._forward_module, getattr(fabric.strategy.precision, "scaler", None))  # type: ignore[arg-type]
        self._fabric = True
        self.restore()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if getattr(self, "_fabric", False):
            self.restore()
