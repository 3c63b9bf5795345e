"""The training loop of one rank: steps, evaluations, records and checkpoints."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DivergedError, GraceError
from ..key import Key
from ..output_files import write_text
from . import build, randomness, resume
from .batches import Batch, Batches, once
from .checkpoint import FORMAT, Checkpoints
from .evaluation import evaluate
from .events import Evaluated, Message, Report, Started, StepDone
from .local import synchronization_of
from .log import Log
from .meters import Meter, flatten
from .schema import Settings
from .world import World, gather

MOST_SKIPPED = 20
"""Consecutive steps without a finite gradient after which a run has diverged."""


class TrainingLoop:
    """A run of checked settings on this rank. `Trainer` is the public interface."""

    def __init__(self, settings: Settings, world: World, folder: Path, report: Report) -> None:
        self.settings, self.train = settings, settings.train
        self.world, self.folder, self.report = world, folder, report
        self.device = build.device_of(settings.device, world)
        self._build()
        self.checkpoints = Checkpoints(folder / "checkpoints", world.rank, world.size, self.train.keep)
        self.meter = Meter(self.train.topk, self.device)
        self.log: Log | None = None
        self.step = self.skipped = 0
        self.offset = 0
        """Steps beyond those that the position in the data amounts to: an epoch has more steps on fewer ranks."""
        self.seconds = 0.0
        self.best: float | None = None
        self.marks = {"dense_bytes": 0, "payload_bytes": 0}

    def _build(self) -> None:
        """Data, model, optimizer and the synchronization of ranks; the same weights on every rank."""
        settings, train, world = self.settings, self.train, self.world
        randomness.seed_all(settings.seed)
        self.data = build.dataset_of(settings.dataset, world)
        self.layout = torch.channels_last if train.channels_last else torch.preserve_format
        model: Any = build.model_of(settings.model)  # its type does not know the layout of `to`
        self.model: nn.Module = model.to(self.device, memory_format=self.layout)
        self.criterion = build.criterion_of(train).to(self.device)
        threads = settings.data.num_threads_per_worker
        self.batches = Batches(
            self.data.train, train.batch_size, train.num_batches_per_step, world, settings.seed, threads
        )
        self.rate = build.learning_rate_of(train, world, self.batches.steps)
        self.optimizer = build.optimizer_of(train, self.model)
        self.sync = synchronization_of(self.model, self.optimizer, train, settings.seed, world)
        # From here on every rank draws its own random numbers (dropout).
        randomness.seed_all(settings.seed + 1 + world.rank)

    @property
    def total(self) -> int:
        """The step at which the run ends."""
        steps = self.offset + self.train.num_epochs * self.batches.steps
        return steps if self.train.num_steps is None else min(steps, self.train.num_steps)

    @property
    def position(self) -> int:
        """The position in the data, in steps of the current number of ranks; learning rates and epochs depend on it."""
        return self.step - self.offset

    # The whole run ------------------------------------------------------------------------------------

    def run(self) -> dict[str, float]:
        """Train to the end, from the newest checkpoint if there is one; returns the last evaluation."""
        self._resume()
        if self.world.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.log = Log(self.folder, self.step, self.train.tensorboard)
            write_text(self.folder / "config.json", json.dumps(self._record(), indent=2) + "\n")
        self.report(Started(self.step, self.total))
        metrics: dict[str, float] = {}
        try:
            while self.step < self.total:
                metrics = self._epoch() or metrics
        finally:
            if self.log is not None:
                self.log.close()
        return metrics or self.evaluate()

    def evaluate_best(self) -> dict[str, float]:
        """Evaluate the best checkpoint (else the newest) without training."""
        state = resume.best(self.checkpoints, self._parameters(), partial=self.sync.local)
        if state is None:
            raise GraceError(
                f"there is nothing to evaluate: {self.checkpoints.folder} holds no checkpoint of every rank."
            )
        self._load(state)
        return self.evaluate()

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the test data, over all ranks."""
        batches = once(self.data.test, self.train.batch_size, self.world)
        meter = Meter(self.train.topk, self.device)
        with self.sync.evaluating():
            return evaluate(self.model, self.criterion, batches, self._placed, meter)

    def _epoch(self) -> dict[str, float]:
        """Train to the end of an epoch or of the run; returns its evaluation, if there was one."""
        epoch, start = divmod(self.position, self.batches.steps)
        self.sync.epoch(epoch)
        began = time.perf_counter()
        for passes in self.batches.epoch(epoch, start):
            self._step(passes)
            if self.position == self.train.num_epochs * self.batches.steps:
                # Not where `num_steps` ends a run early, so that a longer one continues from there as if not interrupted.
                self.sync.finish()
            # The time of training includes the preparation of batches, but not evaluations and checkpoints.
            self.seconds += time.perf_counter() - began
            ended = self.position % self.batches.steps == 0 or self.step == self.total
            if self.step % self.train.log_every == 0 or ended:
                self._write(epoch)
            if ended:
                return self._end_epoch(epoch)
            every = self.train.save_every_steps
            if every is not None and self.step % every == 0:
                self.checkpoints.save(self.step, self._state())
            began = time.perf_counter()
        return {}

    def _end_epoch(self, epoch: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        better = False
        if (epoch + 1) % self.train.evaluate_every == 0 or self.step == self.total:
            metrics = self.evaluate()
            better = self._is_best(metrics)
            self._write_evaluation(epoch, metrics)
            if not math.isfinite(metrics["loss/test"]):
                raise self._diverged()
        self.checkpoints.save(self.step, self._state(), better)
        return metrics

    def _is_best(self, metrics: dict[str, float]) -> bool:
        value = metrics[self.train.metric]
        lower = self.train.metric.startswith("loss")
        if self.best is None or (value < self.best if lower else value > self.best):
            self.best = value
            return True
        return False

    # One step -----------------------------------------------------------------------------------------

    def _step(self, passes: list[Batch]) -> None:
        began = time.perf_counter()
        rate = self.rate(self.position)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        done = []
        for number, (inputs, targets) in enumerate(passes):
            with self.sync.backward_pass(number):
                scores = self.sync.model(self._placed(inputs))
                scores, targets = flatten(scores, targets.to(self.device, non_blocking=True))
                loss = self.criterion(scores, targets)
                (loss / len(passes)).backward()
            done.append((loss, scores, targets))
        if self._update():
            for loss, scores, targets in done:
                self.meter.add(loss, scores, targets)
        self.sync.stepped()
        self.step += 1
        self._report_step(time.perf_counter() - began)

    def _placed(self, inputs: Tensor) -> Tensor:
        layout = self.layout if inputs.dim() == 4 else torch.preserve_format
        return inputs.to(self.device, non_blocking=True, memory_format=layout)

    def _update(self) -> bool:
        """Apply the gradient, unless it is not finite; ranks that exchange it at every step decide alike."""
        if not self._is_finite():
            self.skipped += 1
            if not self.sync.local:
                self._check_skipped(self.skipped)
            return False
        self.skipped = 0
        if self.train.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip_grad_norm)
        self.optimizer.step()
        return True

    def _check_skipped(self, skipped: int) -> None:
        if skipped >= min(MOST_SKIPPED, self.total):
            raise self._diverged()

    @torch.no_grad()
    def _is_finite(self) -> bool:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return not grads or bool(torch.stack(torch._foreach_norm(grads, math.inf)).isfinite().all())

    def _diverged(self) -> DivergedError:
        return DivergedError(
            f"the run has diverged: at step {self.step} loss or gradients are not finite; use a smaller "
            "configs.train.optimizer.lr or a longer configs.train.warmup_lr_epochs."
        )

    # Records ------------------------------------------------------------------------------------------

    def _report_step(self, seconds: float) -> None:
        loss, accuracy = self.meter.local()
        epoch = (self.position - 1) // self.batches.steps
        speed = self.batches.per_step / seconds
        sent = self.sync.stats.leaving_bytes
        self.report(StepDone(self.step, epoch, loss, accuracy, speed, sent))

    def _write(self, epoch: int) -> None:
        """Write a log record of the steps since the last one; every rank must call it."""
        applied = bool(self.meter.sums[0])
        if self.sync.local:  # ranks have skipped steps by themselves
            counts = gather((applied, self.skipped))
            self._check_skipped(max(skipped for _, skipped in counts))
            applied = any(found for found, _ in counts)
        scalars = self.meter.result("train")
        self.meter.clear()
        if not applied:  # all steps were skipped
            scalars = {}
        elif not math.isfinite(scalars["loss/train"]):
            raise self._diverged()
        stats = self.sync.stats
        dense = stats.dense_bytes - self.marks["dense_bytes"]
        payload = stats.payload_bytes - self.marks["payload_bytes"]
        self.marks = {"dense_bytes": stats.dense_bytes, "payload_bytes": stats.payload_bytes}
        scalars["lr"] = self.rate(self.position - 1)
        scalars["bytes/sent"] = stats.leaving_bytes
        if payload:
            scalars["compression/ratio"] = dense / payload
        if self.sync.share is not None:
            scalars["compression/share"] = self.sync.share
        scalars |= self.sync.scalars()
        if self.log is not None:
            self.log.write(self.step, scalars, epoch=epoch, seconds=self.seconds)

    def _write_evaluation(self, epoch: int, metrics: dict[str, float]) -> None:
        if self.log is not None:
            scalars = {**metrics, f"{self.train.metric}_best": self.best or 0.0}
            self.log.write(self.step, scalars, epoch=epoch, seconds=self.seconds)
        self.report(Evaluated(self.step, epoch, metrics, self.sync.stats.leaving_bytes))

    def _record(self) -> dict[str, Any]:
        from .. import __version__

        return {
            "configs": self.settings.plain(),
            "world": {"size": self.world.size, "launcher": self.world.launcher},
            "versions": {"grace": __version__, "torch": torch.__version__},
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.total,
        }

    # Checkpoints --------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": self.step,
            "offset": self.offset,
            "epoch": {"steps": self.batches.steps, "samples": self.batches.per_step},
            "configs": json.dumps(self.settings.plain()),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exchange": self.sync.state_dict(),
            "randomness": randomness.state(),
            "meter": self.meter.sums.cpu(),
            "marks": dict(self.marks),
            "seconds": self.seconds,
            "best": self.best,
            "skipped": self.skipped,
        }

    def _resume(self) -> None:
        state = resume.newest(self.checkpoints, self._parameters(), partial=self.sync.local)
        if state is not None:
            resume.check_config(state["configs"], self.settings.plain(), self.folder)
            self._load(state)
            self.report(Message(f"resuming at step {self.step} of {self.total}"))
        self.checkpoints.start_from(self.step)

    def _parameters(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sync.load_state_dict(state["exchange"])
        resume.check_replicas(self.sync.common_state(self.optimizer))
        self.step, self.seconds = state["step"], state["seconds"]
        self.offset = self._offset(state)
        if state["randomness"] is None:  # of a different number of ranks
            seed = Key("resumed", self.settings.seed, self.step, self.world.rank).word()
            randomness.seed_all(seed >> 1)
        else:
            randomness.restore(state["randomness"])
        self.meter.sums.copy_(state["meter"])
        self.marks = dict(state["marks"])
        self.best, self.skipped = state["best"], state["skipped"]

    def _offset(self, state: dict[str, Any]) -> int:
        """The offset that continues at the saved position in the data; batches have a different size on other ranks."""
        then = state["epoch"]
        if then == {"steps": self.batches.steps, "samples": self.batches.per_step}:
            return int(state["offset"])
        epoch, start = divmod(state["step"] - state["offset"], then["steps"])
        done = -(-start * then["samples"] // self.batches.per_step)
        return int(state["step"] - epoch * self.batches.steps - min(done, self.batches.steps))
