"""MNIST with Horovod: every worker has the whole model and a part of the data.

python torch_hvd_mnist.py
horovodrun -np 2 --gloo python torch_hvd_mnist.py
horovodrun -np 2 --gloo python torch_hvd_mnist.py --ratio 0.01
"""

import argparse
import time

import horovod.torch as hvd
import torch
from torch import nn

import grace_dl as grace
import grace_dl.torch  # lets Horovod accept `grace=`
from grace_dl.data import load_images

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=256, help="images in a step, of all workers together")
parser.add_argument(
    "--ratio", type=float, help="send this share of a gradient, its largest elements, and not all of it"
)
args = parser.parse_args()

hvd.init()  # 1. find the other workers
say = print if hvd.rank() == 0 else lambda *_: None
say(f"{hvd.size()} worker(s), {f'top-k with ratio {args.ratio}' if args.ratio else 'no compression'}")

torch.manual_seed(0)
images = load_images("mnist", report=say)
train_x, train_y = images.train_x.float().div(255).flatten(1), images.train_y
test_x, test_y = images.test_x.float().div(255).flatten(1), images.test_y

model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 2. all start from the same weights
options = {}
if args.ratio:  # 3b. the one more line: send compressed gradients
    options["grace"] = grace.topk(args.ratio)
# 3. average the gradients of all workers
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


def accuracy():
    """Share of the test images that are classified correctly."""
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


seconds, steps = 0.0, 0
for epoch in range(args.epochs):
    started = time.perf_counter()
    order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(args.batch):
        batch = batch[hvd.rank() :: hvd.size()]  # 4. every worker takes its own part of the batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
        steps += 1
    seconds += time.perf_counter() - started
    say(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {100 * accuracy():.2f} %")

sent = 4 * sum(p.numel() for p in model.parameters())
if args.ratio:
    sent = optimizer.grace.stats().payload_bytes // steps
traffic = (
    f"; {sent:,} bytes of gradients a worker and step" if hvd.size() > 1 else ""
)  # alone, nothing is sent
say(f"{steps} steps of {1000 * seconds / steps:.1f} ms{traffic}")
say(f"test accuracy {100 * accuracy():.2f} %")
