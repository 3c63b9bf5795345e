"""A process that ends right after a collective exits with code 0."""

from __future__ import annotations

import subprocess
import sys

_ENDINGS = """
import os, sys
import torch
import torch.distributed as dist
from grace_dl.transport.torch_dist import TorchTransport

for _ in range(24):
    child = os.fork()
    if child == 0:
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(f"exit code {code}")
else:
    sys.exit()

# A child goes on here and ends as a program does. Its main thread keeps the interpreter lock, as on a busy machine.
sys.setswitchinterval(1000)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
transport = TorchTransport()
tensor = torch.ones(1000)
for _ in range(3):
    transport.allreduce(tensor).wait()
"""


def test_threads_of_the_engine_free_their_tensors_before_the_interpreter_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDINGS], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
