"""Loss and accuracy, summed over samples and over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class Meter:
    """Sums of the loss and of correct predictions among the k most likely classes."""

    def __init__(self, topk: Sequence[int], device: torch.device) -> None:
        self.topk = list(topk)
        self.sums = torch.zeros(2 + len(self.topk), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, scores: Tensor, targets: Tensor) -> None:
        """`scores` [samples, classes], `targets` [samples]; `loss` is their mean."""
        count = len(targets)
        most = min(max(self.topk), scores.shape[1])
        hits = scores.topk(most, dim=1).indices == targets[:, None]
        self.sums[0] += count
        self.sums[1] += loss.detach().double() * count
        for place, k in enumerate(self.topk):
            self.sums[2 + place] += hits[:, : min(k, most)].sum()

    def local(self) -> tuple[float, float]:
        """Loss and first accuracy of this rank only."""
        count, loss, right, *_ = self.sums.tolist()
        return (loss / count, right / count) if count else (float("nan"), 0.0)

    def result(self, split: str) -> dict[str, float]:
        """Averages over all ranks, by name; every rank must call it."""
        total = self.sums.clone()
        if dist.is_initialized():
            dist.all_reduce(total)
        count, loss, *right = total.tolist()
        found = {f"loss/{split}": loss / count if count else float("nan")}
        for k, hits in zip(self.topk, right):
            found[f"acc/{split}_top{k}"] = hits / count if count else 0.0
        return found

    def clear(self) -> None:
        self.sums.zero_()


def flatten(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Scores with one row for each prediction; a text has one at every position."""
    return (scores.flatten(0, -2), targets.flatten()) if scores.dim() > 2 else (scores, targets)
