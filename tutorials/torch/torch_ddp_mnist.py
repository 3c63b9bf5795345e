"""MNIST with PyTorch's own data parallelism, DistributedDataParallel.

python torch_ddp_mnist.py
torchrun --standalone --nproc-per-node 2 torch_ddp_mnist.py
torchrun --standalone --nproc-per-node 2 torch_ddp_mnist.py --ratio 0.01
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from grace_dl.data import load_images

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=256, help="images in a step, of all workers together")
parser.add_argument(
    "--ratio", type=float, help="send this share of a gradient, its largest elements, and not all of it"
)
args = parser.parse_args()

# 1. find the other workers; a process that no launcher has started is alone
if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, size = dist.get_rank(), dist.get_world_size()
say = print if rank == 0 else lambda *_: None
say(f"{size} worker(s), {f'top-k with ratio {args.ratio}' if args.ratio else 'no compression'}")

torch.manual_seed(0)
images = load_images("mnist", report=say)
train_x, train_y = images.train_x.float().div(255).flatten(1), images.train_y
test_x, test_y = images.test_x.float().div(255).flatten(1), images.test_y

model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
model = DistributedDataParallel(model)  # 2. and 3. start from the same weights, average gradients
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
if args.ratio:  # 3b. the one more line: send compressed gradients
    handle = grace.attach(model, grace.topk(args.ratio))


def accuracy():
    """Share of the test images that are classified correctly."""
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


seconds, steps = 0.0, 0
for epoch in range(args.epochs):
    started = time.perf_counter()
    order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(args.batch):
        batch = batch[rank::size]  # 4. every worker takes its own part of the batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
        steps += 1
    seconds += time.perf_counter() - started
    say(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {100 * accuracy():.2f} %")

sent = 4 * sum(p.numel() for p in model.parameters())
if args.ratio:
    sent = handle.stats().payload_bytes // steps
traffic = f"; {sent:,} bytes of gradients a worker and step" if size > 1 else ""  # alone, nothing is sent
say(f"{steps} steps of {1000 * seconds / steps:.1f} ms{traffic}")
say(f"test accuracy {100 * accuracy():.2f} %")
dist.destroy_process_group()
