"""The launcher itself: results, failures, deaths and hangs of ranks are all reported."""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from launch import Launcher, RankFailure


def total(rank: int, world: int, scale: float) -> torch.Tensor:
    x = torch.full((2,), scale * rank)
    dist.all_reduce(x)
    return x


def describe(rank: int, world: int) -> tuple[int, int, int, str | None]:
    return os.getpid(), torch.get_num_threads(), torch.initial_seed(), os.environ.get("GRACE_TEST_SETTING")


def fail_on_one(rank: int, world: int) -> None:
    print(f"rank {rank} was here", file=sys.stderr)
    if rank == 1:
        raise ValueError("this rank is unwell")
    dist.barrier()


def die(rank: int, world: int) -> None:
    if rank == 0:
        os._exit(7)
    dist.barrier()


def join_alone(rank: int, world: int, store: str) -> None:
    """Rank 0 waits for the other in vain."""
    if rank == 0:
        limit = datetime.timedelta(seconds=0.5)
        with pytest.raises(RuntimeError):
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=0, world_size=2, timeout=limit
            )


def hang_here(rank: int, world: int) -> None:
    if rank == 1:
        time.sleep(100)


def no_group(rank: int, world: int) -> bool:
    return dist.is_initialized()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_results_come_by_rank(launch: Launcher, world: int) -> None:
    for x in launch(total, world, 1.0):
        assert x.tolist() == [sum(range(world))] * 2


def test_processes_are_reused_but_seeded_apart(launch: Launcher) -> None:
    first = launch(describe, 2)
    second = launch(describe, 2, env={"GRACE_TEST_SETTING": "on"})
    assert [f[0] for f in first] == [s[0] for s in second]
    assert first[0][2] != first[1][2]
    assert [f[1] for f in first] == [1, 1]
    assert [f[3] for f in first] == [None, None]
    assert [s[3] for s in second] == ["on", "on"]


def test_group_can_be_left_out(launch: Launcher) -> None:
    assert launch(no_group, 2, init=False) == [False, False]


def test_a_failing_rank_fails_the_call_with_every_traceback(launch: Launcher) -> None:
    with pytest.raises(RankFailure, match="this rank is unwell") as info:
        launch(fail_on_one, 3, timeout=30)
    assert "fail_on_one" in str(info.value)
    assert "rank 1 was here" in str(info.value)
    # Peers saw the rank leave rather than wait for the clock.
    assert all(not o.ok and o.seconds < 20 for o in info.value.outcomes)
    assert launch(no_group, 3) == [True] * 3


def test_a_dead_process_is_reported(launch: Launcher) -> None:
    outcomes = launch.outcomes(die, 2, timeout=30)
    assert outcomes[0].error == "the process died, exit code 7"
    assert not outcomes[1].ok


def test_a_hang_ends_with_stacks(launch: Launcher) -> None:
    started = time.monotonic()
    with pytest.raises(RankFailure, match="no answer within 3 s") as info:
        launch(hang_here, 2, timeout=3)
    assert time.monotonic() - started < 20
    assert "hang_here" in info.value.outcomes[1].output  # the Python stack names the culprit


def test_functions_must_be_importable(launch: Launcher) -> None:
    with pytest.raises(TypeError, match="module level"):
        launch(lambda rank, world: None, 2)


def test_ranks_meet_after_a_call_in_which_one_could_not_join(launch: Launcher, tmp_path: Path) -> None:
    launch(join_alone, 2, str(tmp_path / "store"), init=False)
    assert [x.tolist() for x in launch(total, 2, 1.0, timeout=20)] == [[1.0, 1.0]] * 2
