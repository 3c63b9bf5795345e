"""The training loop: steps, evaluations, records and checkpoints of one rank."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import DivergedError, GraceError
from . import build, randomness, resume
from .batches import Batch, Batches, once
from .checkpoint import FORMAT, Checkpoints, write_text
from .exchange import GradientExchange, communicator_of
from .log import Log
from .meters import Meter, flatten
from .world import World

MOST_SKIPPED = 20
"""Steps in a row without a finite gradient after which a run gives up."""


class Trainer:
    """A run of the resolved tree `configs` on this rank. `report` is told what happens, on rank 0 alone."""

    def __init__(
        self, configs: Any, world: World, folder: Path, report: Callable[[tuple[Any, ...]], None]
    ) -> None:
        build.require(configs)
        self.configs, self.world, self.folder = configs, world, folder
        self.train = configs.train
        self.report = report if world.rank == 0 else lambda event: None
        self.device = build.device_of(configs.device, world)
        randomness.seed_all(configs.seed)
        self.data = build.dataset_of(configs.dataset, world)
        self.layout = torch.channels_last if self.train.channels_last else torch.preserve_format
        self.model: nn.Module = configs.model().to(self.device, memory_format=self.layout)
        self.criterion: nn.Module = (
            self.train.criterion().to(self.device) if self.train.criterion else nn.CrossEntropyLoss()
        )
        passes = self.train.num_batches_per_step
        self.batches = Batches(
            self.data.train,
            self.train.batch_size,
            passes,
            world,
            configs.seed,
            configs.data.num_threads_per_worker,
        )
        self.rate = build.learning_rate_of(configs, world, self.batches.steps)
        self.optimizer = build.optimizer_of(configs, self.model)
        communicator = None
        if self.train.compression is not None:
            communicator = communicator_of(self.train.compression(), configs.seed)
        self.exchange = GradientExchange(
            self.model, self.optimizer, communicator, world, self.train.engine, passes
        )
        # From here on ranks draw differently (dropout); their weights are the same.
        randomness.seed_all(configs.seed + 1 + world.rank)
        self.total = self.train.num_epochs * self.batches.steps
        if self.train.num_steps is not None:
            self.total = min(self.total, self.train.num_steps)
        self.checkpoints = Checkpoints(folder / "checkpoints", world.rank, self.train.keep)
        self.meter = Meter(self.train.topk, self.device)
        self.step = self.skipped = 0
        self.seconds = 0.0
        self.best: float | None = None
        self.marks = {"dense_bytes": 0, "payload_bytes": 0}

    # The whole run ------------------------------------------------------------------------------------

    def run(self) -> dict[str, float]:
        """Train to the end, from the newest checkpoint if there is one; returns the last evaluation."""
        record = self.folder / "config.json"
        self._resume(record)
        log = Log(self.folder, self.step, self.train.tensorboard) if self.world.rank == 0 else None
        if self.world.rank == 0:
            write_text(record, json.dumps(self._record(), indent=2) + "\n")
        self.report(("start", "training", self.step, self.total))
        scores: dict[str, float] = {}
        try:
            while self.step < self.total:
                epoch, start = divmod(self.step, self.batches.steps)
                self.exchange.epoch(epoch)
                began = time.perf_counter()
                for passes in self.batches.epoch(epoch, start):
                    self._step(passes)
                    # Time to train, batches included; evaluations and checkpoints are not.
                    self.seconds += time.perf_counter() - began
                    ended = self.step % self.batches.steps == 0 or self.step == self.total
                    if self.step % self.train.log_every == 0 or ended:
                        self._write(log, epoch)
                    better = False
                    if ended and ((epoch + 1) % self.train.evaluate_every == 0 or self.step == self.total):
                        scores = self.evaluate()
                        better = self._better(scores)
                        self._tell(log, epoch, scores)
                    every = self.train.save_every_steps
                    if ended or (every is not None and self.step % every == 0):
                        self.checkpoints.save(self.step, self._state(), better)
                    if ended:
                        break
                    began = time.perf_counter()
        finally:
            if log is not None:
                log.close()
        return scores or self.evaluate()

    def evaluate_best(self) -> dict[str, float]:
        """Evaluate the best checkpoint (else the newest) without training."""
        state = resume.best(self.checkpoints)
        if state is None:
            raise GraceError(
                f"there is nothing to evaluate: {self.checkpoints.folder} holds no checkpoint of every rank."
            )
        self._load(state)
        return self.evaluate()

    # One step -----------------------------------------------------------------------------------------

    def _step(self, passes: list[Batch]) -> None:
        began = time.perf_counter()
        rate = self.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        skipped = self.exchange.stats.skipped
        for number, (inputs, targets) in enumerate(passes):
            with self.exchange.backward_pass(number):
                scores = self.exchange.model(self._placed(inputs))
                scores, targets = flatten(scores, targets.to(self.device, non_blocking=True))
                loss = self.criterion(scores, targets)
                (loss / len(passes)).backward()
            self.meter.add(loss, scores, targets)
        self._update(skipped)
        self.step += 1
        seconds = time.perf_counter() - began
        loss_now, accuracy = self.meter.local()
        facts = {
            "step": self.step,
            "epoch": (self.step - 1) // self.batches.steps,
            "loss": loss_now,
            "accuracy": accuracy,
        }
        facts["speed"] = self.batches.per_step / seconds
        facts["bytes"] = self.exchange.stats.leaving_bytes
        self.report(("step", facts))

    def _placed(self, inputs: Tensor) -> Tensor:
        layout = self.layout if inputs.dim() == 4 else torch.preserve_format
        return inputs.to(self.device, non_blocking=True, memory_format=layout)

    def _update(self, skipped: int) -> None:
        """Apply the gradient, unless the exchange gave the step up because it was not finite somewhere."""
        if self.exchange.stats.skipped > skipped:
            self.skipped += 1
            if self.skipped >= MOST_SKIPPED:
                raise self._diverged()
            return
        self.skipped = 0
        if self.train.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip_grad_norm)
        self.optimizer.step()

    def _diverged(self) -> DivergedError:
        return DivergedError(
            f"the run has diverged: at step {self.step} loss or gradients are not finite; use a smaller "
            "configs.train.optimizer.lr or a longer configs.train.warmup_lr_epochs."
        )

    # Evaluation ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the test data, which the ranks divide among them."""
        meter = Meter(self.train.topk, self.device)
        self.model.eval()
        with _averaged_buffers(self.model):
            for inputs, targets in once(self.data.test, self.train.batch_size, self.world):
                scores, targets = flatten(self.model(self._placed(inputs)), targets.to(self.device))
                meter.add(self.criterion(scores, targets), scores, targets)
        return meter.result("test")

    def _better(self, scores: dict[str, float]) -> bool:
        value = scores[self.train.metric]
        lower = self.train.metric.startswith("loss")
        if self.best is None or (value < self.best if lower else value > self.best):
            self.best = value
            return True
        return False

    # Records ------------------------------------------------------------------------------------------

    def _write(self, log: Log | None, epoch: int) -> None:
        scalars = self.meter.result("train")
        self.meter.clear()
        if self.exchange.communicator is None and not math.isfinite(scalars["loss/train"]):
            raise self._diverged()
        stats = self.exchange.stats
        dense = stats.dense_bytes - self.marks["dense_bytes"]
        payload = stats.payload_bytes - self.marks["payload_bytes"]
        self.marks = {"dense_bytes": stats.dense_bytes, "payload_bytes": stats.payload_bytes}
        scalars["lr"] = self.rate(self.step - 1)
        scalars["bytes/sent"] = stats.leaving_bytes
        if payload:
            scalars["compression/ratio"] = dense / payload
        if self.exchange.share is not None:
            scalars["compression/share"] = self.exchange.share
        if log is not None:
            log.write(self.step, scalars, epoch=epoch, seconds=self.seconds)

    def _tell(self, log: Log | None, epoch: int, scores: dict[str, float]) -> None:
        if log is not None:
            scalars = {**scores, f"{self.train.metric}_best": self.best or 0.0}
            log.write(self.step, scalars, epoch=epoch, seconds=self.seconds)
        sent = self.exchange.stats.leaving_bytes
        self.report(("epoch", {"epoch": epoch, "step": self.step, "scores": scores, "bytes": sent}))

    def _record(self) -> dict[str, Any]:
        from .. import __version__

        return {
            "configs": self.configs.plain(),
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
            "configs": json.dumps(self.configs.plain()),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exchange": self.exchange.state_dict(),
            "randomness": randomness.state(),
            "meter": self.meter.sums.cpu(),
            "marks": dict(self.marks),
            "seconds": self.seconds,
            "best": self.best,
            "skipped": self.skipped,
        }

    def _resume(self, record: Path) -> None:
        resume.check_world(self.checkpoints, self.world, record)
        state = resume.newest(self.checkpoints)
        if state is None:
            return
        resume.check_config(state["configs"], self.configs.plain(), self.folder)
        self._load(state)
        self.report(("say", f"resuming at step {self.step} of {self.total}"))

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.exchange.load_state_dict(state["exchange"])
        randomness.restore(state["randomness"])
        self.meter.sums.copy_(state["meter"])
        self.marks = dict(state["marks"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.best, self.skipped = state["best"], state["skipped"]


@contextlib.contextmanager
def _averaged_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics as their mean over ranks, for the time of an evaluation."""
    if not dist.is_initialized():
        yield
        return
    own = [(buffer, buffer.clone()) for buffer in model.buffers() if buffer.is_floating_point()]
    for buffer, _ in own:
        dist.all_reduce(buffer)
        buffer.div_(dist.get_world_size())
    yield
    for buffer, before in own:
        buffer.copy_(before)
