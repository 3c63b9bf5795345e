"""Transformers: `trainer.add_callback(GraceCallback("topk:0.01", trainer))`."""

from __future__ import annotations

import functools
import os
from typing import Any

from .. import checkpoints
from ..algebra.base import Method
from ..algebra.text import CarriesMethod
from .prepared import Attachment, missing
from .rank_state import load_state

try:
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ImportError as _error:
    raise missing("transformers", "transformers", _error) from _error


class GraceCallback(Attachment, TrainerCallback):  # type: ignore[misc]
    """Compress the gradients of a model that the `Trainer` of transformers trains, under `torchrun` or `accelerate launch`.

    Every rank saves its state in the trainer's checkpoint folder, and `trainer.train(resume_from_checkpoint=...)`
    restores it. A single process trains as without the callback.

    >>> trainer = Trainer(model, arguments, train_dataset=data)  # doctest: +SKIP
    >>> callback = GraceCallback("topk:0.01", trainer)  # doctest: +SKIP
    >>> trainer.add_callback(callback)  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    >>> print(callback.handle.stats())  # doctest: +SKIP
    """

    remedy = "train with DDP, which Trainer uses under torchrun unless fsdp or deepspeed is set"

    def __init__(self, method: Method | str | CarriesMethod, trainer: Any) -> None:
        super().__init__(method)
        # Callbacks get neither the wrapped model nor the folder that training resumes from.
        self._trainer = trainer
        self._resume: str | None = None
        train = trainer.train

        @functools.wraps(train)
        def noting_the_checkpoint(resume_from_checkpoint: Any = None, *rest: Any, **options: Any) -> Any:
            self._resume = (
                get_last_checkpoint(trainer.args.output_dir)
                if resume_from_checkpoint is True
                else resume_from_checkpoint or None
            )
            return train(resume_from_checkpoint, *rest, **options)

        trainer.train = noting_the_checkpoint

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.attach(self._trainer.model_wrapped, self._trainer.accelerator.scaler)
        if self._resume is not None:
            load_state(self.handle, self._resume)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if not args.save_only_model:
            folder = os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            checkpoints.save(self.handle, folder)
