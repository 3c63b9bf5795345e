"""All points on real Gloo processes: each scenario runs there and on the simulated transport, with equal results."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from contract.cases import BATCHES, TWO_PHASES, Case, bits_equal, build, cases_of, gradients
from contract.wire import Counting
from grace_dl import simulated
from grace_dl.transport.base import Transport
from grace_dl.transport.torch_dist import TorchTransport


def scenario(case: Case, transport: Transport) -> dict[str, Any]:
    """What one rank does: ordinary steps, a bad one, odd inputs, a saved state and a second object that goes on."""
    rank, size = transport.rank, transport.size
    counter = Counting(transport)
    handle = build(case, counter)
    grads = gradients(size, 4)[rank]
    results = [handle.step(grads[0], "layer.weight"), handle.step(grads[1], "layer.weight")]
    bad = grads[2].clone()
    if rank == size - 1:
        bad[1, 2] = math.nan
    broken = handle.step(bad, "layer.weight")
    results.append(handle.step(grads[2], "layer.weight"))
    odd = [
        handle.step(x, f"odd {place}")
        for place, x in enumerate(
            [
                torch.zeros(64, 72),
                torch.tensor(0.5 + rank),
                torch.empty(0),
                grads[0].to(torch.bfloat16),
                grads[0].double().t(),
            ]
        )
    ]
    other = build(case, Counting(transport))
    other.load_state_dict(handle.state_dict())
    results += [handle.step(grads[3], "layer.weight"), other.step(grads[3], "layer.weight")]
    return {
        "results": results,
        "odd": odd,
        "broken": broken,
        "payload": handle.stats().payload_bytes,
        "handed": counter.handed,
        "leaving": (handle.stats().leaving_bytes, counter.leaving, len(counter.calls)),
    }


def on_processes(rank: int, world: int, cases: list[Case]) -> list[dict[str, Any]]:
    return [scenario(case, TorchTransport()) for case in cases]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("names", BATCHES, ids=" ".join)
def test_processes_and_simulation_agree(launch, names, size):
    cases = [case for name in names for case in cases_of(name)]
    answers = launch(on_processes, size, cases, timeout=240)
    for place, case in enumerate(cases):
        real = [answer[place] for answer in answers]
        model = simulated(size, timeout=20)
        expected = model.run(partial(scenario, case))
        for rank, (found, wanted) in enumerate(zip(real, expected)):
            where = f"{case}, rank {rank}"
            assert not found["broken"].isfinite().all(), where
            assert found["handed"] == wanted["handed"], where
            if case.communicator not in TWO_PHASES:
                assert found["payload"] == found["handed"], where
            reported, counted, calls = found["leaving"]
            assert abs(reported - counted) <= calls, where
            for mine, zero, model_result in zip(
                found["results"] + found["odd"],
                real[0]["results"] + real[0]["odd"],
                wanted["results"] + wanted["odd"],
            ):
                assert bits_equal(mine, zero), where
                assert mine.isfinite().all(), where
                if case.communicator == "allreduce":
                    # A ring adds up in another order than the simulation does.
                    scale = float(model_result.abs().max()) if mine.numel() else 1.0
                    near = {"fp16": 5e-3, "bf16": 4e-2, "powersgd": 1e-3, "acpsgd": 1e-3}.get(
                        case.method, 1e-5
                    )
                    near = max(near, 4 * torch.finfo(mine.dtype).eps)
                    assert (mine - model_result).abs().le(near * scale + 1e-30).all(), where
                else:
                    assert bits_equal(mine, model_result), where
            assert bits_equal(found["results"][-2], found["results"][-1]), (
                f"{where}: a resumed object differs"
            )
