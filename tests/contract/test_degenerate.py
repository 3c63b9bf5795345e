"""Point 5: odd inputs give right results, no NaN of our making, and the dtype and shape they came with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contract.cases import (
    CASES,
    NAMES,
    VOTES,
    Case,
    bits_equal,
    build,
    codec,
    gradients,
    owed,
    run,
    same,
    slots,
)
from grace_dl import simulated
from grace_dl.errors import UnsupportedError
from values import not_none

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    info = torch.finfo(dtype)
    (base,) = gradients(1, 1, (40, 30), torch.float64)[0]
    base = base.to(dtype)
    huge = base.clone()
    huge[3, 4] = info.max / 8
    single = torch.zeros(40, 30, dtype=dtype)
    single[3, 4] = info.max / 8
    tiny = (torch.arange(1200, dtype=torch.float64).view(40, 30) - 600) * info.smallest_normal * info.eps
    return {
        "ordinary": base,
        "empty": torch.empty(0, dtype=dtype),
        "empty-2d": torch.empty(0, 5, dtype=dtype),
        "scalar": torch.tensor(0.75, dtype=dtype),
        "one": torch.tensor([-0.75], dtype=dtype),
        "two": torch.tensor([[0.5], [-1.5]], dtype=dtype),
        "zeros": torch.zeros(40, 30, dtype=dtype),
        "negative-zeros": -torch.zeros(40, 30, dtype=dtype),
        "equal": torch.full((40, 30), 0.25, dtype=dtype),
        "equal-negative": torch.full((40, 30), -0.25, dtype=dtype),
        "huge-among-others": huge,
        "huge-alone": single,
        # Sums of the elements are still numbers, sums of their squares are not.
        "all-huge": torch.full((40, 30), info.max / 2**14, dtype=dtype),
        "subnormal": tiny.to(dtype),
        "one-positive": torch.cat([-base.abs().view(-1), torch.ones(1, dtype=dtype)]),
        "transposed": base.t(),
        "strided": base[::2, ::3],
        "expanded": base[:1].expand(40, 30),
        "4-d": base[:, :27].reshape(8, 5, 3, 9).contiguous(memory_format=torch.channels_last),
    }


GROWTH = {"natural": 4, "efsignsgd": 10}
"""Powers of two may round up, twice in an all-to-all; EF-signSGD divides by a learning rate of 0.1."""


def right(name: str, kind: str, x: Tensor, out: Tensor) -> None:
    """What holds for any method: nothing is made up, and nothing grows out of proportion."""
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    assert bool(out.isfinite().all()), f"{kind}: {int((~out.isfinite()).sum())} elements are not finite"
    if x.numel() == 0:
        return
    if "zeros" in kind:
        assert (out == 0).all(), f"zeros became {out.abs().max()}"
    if name in VOTES:
        assert set(out.unique().tolist()) <= {-1.0, 0.0, 1.0}
    elif name not in ("randomk", "eden"):
        # Whatever is decoded lies about as far out as the input: at most its norm (one-bit scales, QSGD's norm).
        scale = x.double().abs().max().clamp(min=torch.finfo(torch.float64).smallest_normal)
        limit = 1.05 * (x.double() / scale).norm() * GROWTH.get(name, 1)
        # Half a unit of the smallest number that is left to round to.
        least = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
        assert out.double().abs().max() <= limit * scale + least, (
            f"{kind}: {out.abs().max()} of {x.abs().max()}"
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_compress_and_decompress(name, dtype):
    for kind, x in inputs(DTYPES[dtype]).items():
        method = codec(name)
        before = x.clone()
        payload, ctx = method.compress(x, "layer.weight")
        right(name, kind, x, method.decompress(payload, ctx))
        assert bits_equal(before, x), f"{kind}: compress changed its input"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_step(case, dtype):
    """Two steps of each input on two ranks (the second with the memory of the first), identical on both."""
    tensors = inputs(DTYPES[dtype])
    world = simulated(2, timeout=20)
    handles = [build(case, t) for t in world]

    def work(t):
        return [[handles[t.rank].step(x, kind) for _ in range(2)] for kind, x in tensors.items()]

    before = {kind: x.clone() for kind, x in tensors.items()}
    first, second = world.run(work)
    for (kind, x), mine, theirs in zip(tensors.items(), first, second):
        assert bits_equal(before[kind], x), f"{kind}: step changed its input"
        right(case.method, kind, x, mine[0])
        same([mine, theirs])
        assert mine[1].isfinite().all(), kind
        assert mine[1].shape == x.shape and mine[1].dtype == x.dtype
    for handle in handles:
        for slot, value in slots(handle).items():
            assert value.isfinite().all(), slot


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_state_of_half_precision_is_float32(dtype):
    """Residuals of half-precision gradients would drown in rounding."""
    x = gradients(1, 1, dtype=DTYPES[dtype])[0][0]
    _, handles = run(1, Case("topk", "residual", "allgather"), [[x]])
    assert not_none(owed(handles[0])).dtype == torch.float32


def test_strides_do_not_matter():
    """A transposed gradient is the tensor it shows, not the memory it lies in."""
    (x,) = gradients(1, 1, (64, 72))[0]
    case = Case("topk", "none", "allgather")
    plain, _ = run(2, case, [[x.t().contiguous()]] * 2)
    strided, _ = run(2, case, [[x.t()]] * 2)
    assert bits_equal(plain[0][0], strided[0][0])


@pytest.mark.parametrize(
    "wrong", [torch.zeros(3, dtype=torch.int64), torch.zeros(3).to_sparse(), torch.zeros(3) > 0]
)
def test_what_is_no_gradient_is_refused(wrong):
    handle = build(Case("topk", "none", "allgather"))
    with pytest.raises(UnsupportedError, match=r"layer\.weight"):
        handle.step(wrong, "layer.weight")
