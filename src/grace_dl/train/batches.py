"""Batches as a function of seed, epoch, step and rank: the same after a resume and in any thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ..errors import ConfigError
from ..key import Key
from .datasets import Split
from .world import World

Batch = tuple[Tensor, Tensor]


class Batches:
    """The batches of one rank. Each epoch has its own order of samples, the same on all ranks."""

    def __init__(
        self, split: Split, batch: int, passes: int, world: World, seed: int, threads: int = 0
    ) -> None:
        self.split, self.batch, self.passes, self.world, self.seed = split, batch, passes, world, seed
        self.threads = threads
        self.per_step = batch * passes * world.size
        self.steps = len(split) // self.per_step
        if self.steps == 0:
            raise ConfigError(
                f"{len(split)} samples make no step of batch_size {batch} x {passes} batches x {world.size} ranks; reduce "
                "configs.train.batch_size or num_batches_per_step."
            )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """The steps of an epoch from step `start`, each as a list of batches, one for each backward pass."""
        order = torch.randperm(len(self.split), generator=_generator(Key("order", self.seed, epoch)))
        if self.threads == 0:
            for step in range(start, self.steps):
                yield self._make(order, epoch, step)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            ahead: deque[Future[list[Batch]]] = deque()
            for step in range(start, self.steps):
                ahead.append(pool.submit(self._make, order, epoch, step))
                if len(ahead) > self.threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _make(self, order: Tensor, epoch: int, step: int) -> list[Batch]:
        first = step * self.per_step + self.world.rank * self.batch * self.passes
        generator = _generator(Key(f"augment/{step}", self.seed, epoch, self.world.rank))
        mine = order[first : first + self.batch * self.passes]
        return [self.split.batch(part, generator) for part in mine.split(self.batch)]


def once(split: Split, batch: int, world: World) -> Iterator[Batch]:
    """This rank's share of a split, without augmentation, each sample once."""
    for part in torch.arange(world.rank, len(split), world.size).split(batch):
        if len(part):
            yield split.batch(part, None)


def _generator(key: Key) -> torch.Generator:
    return torch.Generator().manual_seed(key.word() >> 1)
