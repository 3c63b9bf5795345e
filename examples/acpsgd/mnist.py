"""MNIST with ACP-SGD. The lines to add to a training script are marked (1) to (5).

bash mnist.sh                                 two workers on this machine
opt=powersgd rank=2 nworkers=4 bash mnist.sh  another method, rank and number of workers
python mnist.py                               one worker, no launcher
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

import acpsgd
from grace_dl.data import load_images


class Net(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(32 * (side // 4) ** 2, 256)
        self.fc2 = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--opt", default="acpsgd", choices=sorted(acpsgd.METHODS))
    parser.add_argument("--rank", type=int, default=4, help="rank of the factors")
    parser.add_argument("--threshold", type=float, default=25, help="MB of gradients per bucket")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--data", default="mnist", choices=["mnist", "fashion-mnist", "digits"])
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    acpsgd.init()  # (1)
    rank, size = acpsgd.rank(), acpsgd.size()
    say = print if rank == 0 else lambda *_, **__: None
    if rank == 0:
        load_images(args.data, ("digits",), say)  # fetched by one worker, read by all
    acpsgd.allreduce(torch.zeros(1))
    images = load_images(args.data, ("digits",))
    scale = float(images.train_x.max())
    train_x, test_x = images.train_x / scale, images.test_x / scale

    torch.manual_seed(args.seed + rank)
    model = Net(train_x.shape[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = acpsgd.DistributedOptimizer(  # (2)
        optimizer, model.named_parameters(), rank=args.rank, threshold=args.threshold, method=args.opt
    )
    acpsgd.broadcast_parameters(model.state_dict(), root_rank=0)  # (3)
    acpsgd.broadcast_optimizer_state(optimizer, root_rank=0)  # (4)

    say(f"{images.title}: {len(train_x)} images, {size} worker(s), {args.opt} rank {args.rank}")
    for epoch in range(1, args.epochs + 1):
        start, total = time.perf_counter(), 0.0
        generator = torch.Generator().manual_seed(1000 * args.seed + epoch)
        order = torch.randperm(len(train_x), generator=generator)
        steps = len(order) // (args.batch_size * size)
        # Every worker takes its own part of each batch.
        for step in range(steps):
            first = (step * size + rank) * args.batch_size
            chosen = order[first : first + args.batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train_x[chosen]), images.train_y[chosen])
            loss.backward()
            optimizer.step()
            total += loss.item()
        with torch.no_grad():
            right = (model(test_x[rank::size]).argmax(1) == images.test_y[rank::size]).sum()
        accuracy = acpsgd.allreduce(right, average=False).item() / len(test_x)  # (5)
        stats = optimizer.grace.stats()
        say(
            f"epoch {epoch}: loss {total / steps:.4f}  accuracy {accuracy:.2%}  "
            f"sent per step {stats.payload_bytes / stats.steps / 1e3:.1f} kB of {stats.dense_bytes / stats.steps / 1e3:.1f}"
            f"  {time.perf_counter() - start:.1f} s"
        )
    acpsgd.shutdown()


if __name__ == "__main__":
    main()
