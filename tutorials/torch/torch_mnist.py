"""MNIST on one process: the program the others start from."""

import argparse
import time

import torch
from torch import nn

from grace_dl.data import load_images

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=256, help="images in a step")
args = parser.parse_args()

torch.manual_seed(0)
images = load_images("mnist", report=print)
train_x, train_y = images.train_x.float().div(255).flatten(1), images.train_y
test_x, test_y = images.test_x.float().div(255).flatten(1), images.test_y

model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)


def accuracy():
    """Share of the test images that are classified correctly."""
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


seconds, steps = 0.0, 0
for epoch in range(args.epochs):
    started = time.perf_counter()
    order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(args.batch):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
        steps += 1
    seconds += time.perf_counter() - started
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {100 * accuracy():.2f} %")

print(f"{steps} steps of {1000 * seconds / steps:.1f} ms")
print(f"test accuracy {100 * accuracy():.2f} %")
