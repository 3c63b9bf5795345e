"""Jobs that end well exit with code 0: three ranks, through DDP and through the original GRACE's lines.

Each job trains a few steps, with and without `destroy_process_group()` at its end.
"""

from __future__ import annotations

import random
import sys

from trial import Job, describe, run

WORLD = 3
KINDS = [f"{target} {end}" for target in ("ddp", "optimizer", "original") for end in ("destroyed", "left")]


def train(target: str, end: str) -> None:
    """One rank of a job."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    if target == "original":
        from grace_dl.dist.helper import grace_from_params

        grc = grace_from_params({"compressor": "topk", "compress_ratio": 0.01})
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 512)).square().mean().backward()
            for name, parameter in model.named_parameters():
                parameter.grad = grc.step(parameter.grad, name)
            optimizer.step()
    else:
        import grace_dl as grace

        net: torch.nn.Module = model
        if target == "ddp":
            net = DistributedDataParallel(model)
            grace.attach(net, grace.topk(0.01))
        else:
            grace.attach(optimizer, grace.powersgd(2), named_parameters=model.named_parameters())
        for _ in range(6):
            optimizer.zero_grad()
            net(torch.randn(4, 512)).square().mean().backward()
            optimizer.step()
    if end == "destroyed":
        dist.destroy_process_group()
    print("done", flush=True)


def trial(number: int, chance: random.Random) -> tuple[str, str | None]:
    kind = KINDS[number % len(KINDS)]
    with Job([__file__, "--rank", *kind.split()], WORLD) as job:
        ranks = job.wait(limit=1200)
    good = all(rank.code == 0 and "done" in rank.output for rank in ranks)
    return kind, None if good else describe(ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=200)
