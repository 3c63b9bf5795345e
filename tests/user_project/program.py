"""A user's program, type-checked against the installed wheel; it is never run."""

import torch
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

handle: grace.Handle = grace.attach(DistributedDataParallel(model), grace.topk(0.01))
print(handle.stats().payload_bytes)
handle = grace.attach(optimizer, grace.powersgd(rank=4), named_parameters=model.named_parameters())
handle.switch(grace.schedule((0, grace.none()), (500, grace.dgc(0.001, momentum=0.9))))
handle.switch(grace.auto(allow=(grace.int8(), grace.powersgd(rank=4))))
explained: str = handle.explain() if handle.settled else handle.stats().choice
handle.load_state_dict(handle.state_dict())
method: grace.Method = grace.by_parameter({"*.bias": grace.none()}, default=grace.parse("int4"))
with grace.manual(method) as manual:
    print(manual.stats().ratio)


@grace.register("mine")
class MyCompressor(grace.Compressor):
    def compress(self, tensor: torch.Tensor, name: str) -> tuple[list[torch.Tensor], torch.Size]:
        return [tensor], tensor.shape

    def decompress(self, payload: list[torch.Tensor], ctx: torch.Size) -> torch.Tensor:
        return payload[0].view(ctx)


grace.attach(optimizer, grace.custom(MyCompressor()), named_parameters=model.named_parameters())
