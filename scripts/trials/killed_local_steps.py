"""One of four machines dies in the middle of a round of local steps: the other three go on, and end with identical replicas.

Each machine is a torchrun agent with one worker and a folder of its own; torchrun may continue with three (`--nnodes 3:4`). At a
random moment one agent and its worker are killed, and its folder is deleted with all that it saved. The others must restart
from what they have saved themselves, with the averaging weight of three.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trial import run

NODES = 4
EVERY = 10
RULES = ["local/diloco.py", "local/sparseloco.py", "local/streaming.py"]
SETTINGS = {
    "dataset.shape": [3, 8, 8],
    "dataset.size": 960,
    "dataset.test_size": 96,
    "dataset.noise": 3.0,
    "model.width": 64,
    "train.batch_size": 8,
    "train.num_epochs": 12,
    "train.save_every_steps": 7,
    "train.tensorboard": False,
    "train.local.every": EVERY,
    "train.save_path": "run",
}
LIMIT = 400.0
STACKS = str(Path(__file__).with_name("with_stacks.py"))


class Machine:
    """A torchrun agent with one worker, in a folder of its own."""

    def __init__(self, folder: Path, port: int, rule: str) -> None:
        self.folder = folder
        folder.mkdir()
        overrides = {**SETTINGS, **({"train.local.delay": 3} if rule == RULES[2] else {})}
        words = [word for path, value in overrides.items() for word in (f"--configs.{path}", str(value))]
        agent = [
            *(sys.executable, STACKS, "-m", "torch.distributed.run", f"--nnodes={NODES - 1}:{NODES}"),
            *("--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"),
            *("--rdzv-id=trial", "--max-restarts=3", "--monitor-interval=0.1"),
            # Heartbeats stay at 3 in 15 s: with faster ones, a busy machine is taken for dead, and the job splits.
            "--rdzv-conf=last_call_timeout=3",
        ]
        train = [
            STACKS,
            "-m",
            "grace_dl.cli",
            "train",
            "--devices",
            "cpu",
            "--configs",
            "configs/synthetic.py",
        ]
        self._said = open(folder / "output.txt", "wb")  # noqa: SIM115 (open as long as the agent)
        self.agent = subprocess.Popen(
            [*agent, *train, f"configs/{rule}", *words],
            cwd=folder,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                # Without it, a machine that joins late never learns the address of the job (torch 2.13).
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    @property
    def silence(self) -> float:
        """Seconds since the agent or its worker printed something."""
        return time.time() - (self.folder / "output.txt").stat().st_mtime

    def saved(self, ranks: int) -> list[int]:
        """The steps that the worker has saved in a job of so many ranks."""
        names = [path.name for path in (self.folder / "run" / "checkpoints").glob(f"step*of{ranks}.pt")]
        return sorted(int(name[4:13]) for name in names)

    def signal(self, number: int) -> int:
        """Signal the agent, if it has not ended, and its worker, which has a session of its own; returns the number of workers."""
        if self.agent.poll() is not None:
            return 0
        listed = subprocess.run(
            ["pgrep", "-P", str(self.agent.pid)], capture_output=True, text=True, check=False
        )
        workers = [int(word) for word in listed.stdout.split()]
        for process in (self.agent.pid, *workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        return len(workers)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.agent.wait()
        self._said.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trial(number: int, chance: random.Random) -> tuple[str, str | None]:
    rule = RULES[number % len(RULES)]
    with tempfile.TemporaryDirectory() as top:
        port, machines = free_port(), []
        try:
            for place in range(NODES):
                machines.append(Machine(Path(top) / f"machine{place}", port, rule))
                if place == 0:
                    wait_for_port(port)  # the first agent serves the rendezvous, so it must not die
            problem = strike(machines, chance) or ended(machines)
            return rule, None if problem is None else f"{problem}\n{tails(machines)}"
        finally:
            for machine in machines:
                machine.kill()


def strike(machines: list[Machine], chance: random.Random) -> str | None:
    """Kill one machine once all have saved twice; its disk is gone with it."""
    deadline = time.monotonic() + LIMIT
    while any(len(machine.saved(NODES)) < 2 for machine in machines):
        if time.monotonic() > deadline or any(machine.agent.poll() is not None for machine in machines):
            return "four machines did not start together, or ended too early"
        time.sleep(0.02)
    time.sleep(chance.uniform(0, 0.5))
    victim = machines.pop(chance.randrange(1, NODES))
    victim.kill()
    shutil.rmtree(victim.folder)
    return None


def ended(machines: list[Machine]) -> str | None:
    """Wait for the survivors; what is wrong with their end, if anything."""
    from grace_dl.digest import digest
    from grace_dl.train.checkpoint import Checkpoints

    for machine in machines:
        try:
            code = machine.agent.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return f"{machine.folder.name} has not ended after {LIMIT:.0f} s\n{stuck(machines)}"
        if code:
            return f"{machine.folder.name} ended with code {code}"
    resumed = [int(words.split()[0]) for m in machines for words in m.output.split("resuming at step ")[1:]]
    if not resumed:
        return "nothing was resumed"
    print(f"went on at step {resumed[-1]}, {resumed[-1] % EVERY} steps into a round", flush=True)
    found = set()
    for machine in machines:
        (path,) = (machine.folder / "run" / "checkpoints").glob(
            f"step{machine.saved(NODES - 1)[-1]:09d}*of{NODES - 1}.pt"
        )
        state = Checkpoints(path.parent, 0, NODES - 1, keep=2).load(path)
        assert state is not None
        found.add(digest([state["step"], state["model"], state["exchange"]["handle"]["local"]["anchor"]]))
    return None if len(found) == 1 else "replicas differ"


def stuck(machines: list[Machine]) -> str:
    """Who has ended and who has not; lets those print their stacks, which are then in their output."""
    said = []
    for machine in machines:
        silence, workers = machine.silence, machine.signal(signal.SIGUSR1)
        code = machine.agent.poll()
        state = f"its agent runs, workers: {workers}" if code is None else f"ended with code {code}"
        said.append(f"{machine.folder.name}: {state}; last output {silence:.0f} s ago")
    time.sleep(5)
    return "\n".join(said)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def tails(machines: list[Machine]) -> str:
    return "\n".join(f"--- {machine.folder.name}\n{machine.output[-12000:]}" for machine in machines)


if __name__ == "__main__":
    run(str(__doc__), trial, runs=20)
