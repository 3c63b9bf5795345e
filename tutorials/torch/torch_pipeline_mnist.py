"""MNIST with model parallelism: the network is split over two processes, activations and their gradients cross.

python torch_pipeline_mnist.py                                             # both halves in one process
torchrun --standalone --nproc-per-node 2 torch_pipeline_mnist.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from grace_dl.data import load_images

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=256, help="images in a step; every process sees all of them")
parser.add_argument(
    "--parts", type=int, default=4, help="a batch travels in so many parts, to keep both halves busy"
)
args = parser.parse_args()

if "RANK" in os.environ:
    dist.init_process_group("gloo")
    if dist.get_world_size() != 2:
        raise SystemExit("this network has two halves: start it with two processes, or with python alone")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, size = dist.get_rank(), dist.get_world_size()
say = print if rank == size - 1 else lambda *_: None
say(f"{size} process(es), {'one half of the network each' if size == 2 else 'the whole network'}")

torch.manual_seed(0)
images = load_images("mnist", report=say)
train_x, train_y = images.train_x.float().div(255).flatten(1), images.train_y
test_x, test_y = images.test_x.float().div(255).flatten(1), images.test_y
# The last batch of an epoch would be smaller: parts have one shape.
count = len(train_x) // args.batch * args.batch

whole = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
halves = [whole[:2], whole[2:]] if size == 2 else [whole]
half = halves[rank]  # 1. every worker has a part of the weights
optimizer = torch.optim.Adam(half.parameters(), lr=0.002)
stage = PipelineStage(half, rank, size, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=args.parts, loss_fn=nn.functional.cross_entropy)

started = time.perf_counter()
steps = 0
for epoch in range(args.epochs):
    order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
    for batch in order[:count].split(args.batch):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        inputs = (train_x[batch],) if rank == 0 else ()  # 2. images enter at the first half
        target = train_y[batch] if rank == size - 1 else None  # 3. the loss is known at the last
        schedule.step(*inputs, target=target, losses=losses if rank == size - 1 else None)
        optimizer.step()
        steps += 1
    if losses:
        say(f"epoch {epoch + 1}: loss {sum(part.item() for part in losses) / len(losses):.3f}")
seconds = time.perf_counter() - started

with torch.no_grad():  # the test images go through the halves by hand
    hidden = half(test_x) if rank == 0 else torch.empty(len(test_x), 512)
    if size == 2:
        dist.broadcast(hidden, src=0)
        hidden = half(hidden) if rank == 1 else hidden
    accuracy = (hidden.argmax(1) == test_y).float().mean().item()
# 512 activations an image forward, their gradients backward.
sent = 4 * 512 * args.batch if size == 2 else 0
say(
    f"{steps} steps of {1000 * seconds / steps:.1f} ms; {sent:,} bytes of activations or gradients a worker and step"
)
say(f"test accuracy {100 * accuracy:.2f} %")
dist.destroy_process_group()
