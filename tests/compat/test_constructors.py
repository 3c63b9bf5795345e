"""Arguments of the original's constructors mean what they meant, or are rejected by name; so do its settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import grace_dl as grace
from grace_dl import simulated
from grace_dl.compat import compressors
from grace_dl.compat.communicators import Allgather, Allreduce, AllToAll, Broadcast
from grace_dl.compat.compressors import (
    DgcCompressor,
    EFSignSGDCompressor,
    FP16Compressor,
    INCEPTIONNCompressor,
    NaturalCompressor,
    NoneCompressor,
    OneBitCompressor,
    PowerSGDCompressor,
    QSGDCompressor,
    RandomKCompressor,
    SignSGDCompressor,
    SignumCompressor,
    TensorFlowPowerSGDCompressor,
    TernGradCompressor,
    TopKCompressor,
)
from grace_dl.compat.memories import DgcMemory, EFSignSGDMemory, NoneMemory, PowerSGDMemory, ResidualMemory
from grace_dl.compat.params import grace_from_params, tensorflow_grace_from_params
from grace_dl.errors import ConfigError

SAME: list[tuple[Any, Any]] = [
    (Allgather(TopKCompressor(0.3, "cupy"), ResidualMemory()), grace.topk(0.3, communicator="allgather")),
    (Allgather(TopKCompressor(compress_ratio=0.3)), grace.topk(0.3, communicator="allgather")),
    (
        Allgather(TopKCompressor(0.3), ResidualMemory(0.9, 0.8)),
        grace.topk(0.3, beta=0.9, gamma=0.8, communicator="allgather"),
    ),
    (Allgather(TopKCompressor(0.3), NoneMemory()), grace.topk(0.3, memory="none", communicator="allgather")),
    (Broadcast(TopKCompressor(0.3), ResidualMemory()), grace.topk(0.3, communicator="broadcast")),
    (
        Allgather(DgcCompressor(0.01), DgcMemory(0.8, False, 2)),
        grace.dgc(0.01, momentum=0.8, communicator="allgather"),
    ),
    (
        Allgather(DgcCompressor(0.01), DgcMemory(0.8, gradient_clipping=False)),
        grace.dgc(0.01, momentum=0.8, communicator="allgather"),
    ),
    (Allreduce(PowerSGDCompressor(), NoneMemory()), grace.powersgd(1)),
    (Allreduce(PowerSGDCompressor(2, True, 4)), grace.powersgd(2)),
    (Allgather(PowerSGDCompressor(), PowerSGDMemory({}, 3)), grace.powersgd(3)),
    (Broadcast(PowerSGDCompressor(3), PowerSGDMemory(PowerSGDCompressor().q_memory, 3)), grace.powersgd(3)),
    (Allreduce(TensorFlowPowerSGDCompressor(0, 2), PowerSGDMemory({}, 2)), grace.powersgd(2)),
    (Allgather(QSGDCompressor(64, 256)), grace.qsgd(64, bucket_size=256, communicator="allgather")),
    (
        Allgather(EFSignSGDCompressor(0.3), EFSignSGDMemory(0.3)),
        grace.efsignsgd(0.3, communicator="allgather"),
    ),
    (Allgather(SignumCompressor(0.8), NoneMemory()), grace.signum(0.8, communicator="allgather")),
    (Allgather(SignSGDCompressor(), NoneMemory()), grace.signsgd(communicator="allgather")),
    (Allgather(INCEPTIONNCompressor(2e-10), NoneMemory()), grace.inceptionn(2**-10, memory="none")),
    (Allreduce(RandomKCompressor(0.3), NoneMemory()), grace.randomk(0.3)),
    (AllToAll(QSGDCompressor(127)), grace.qsgd(communicator="alltoall")),
    (Allreduce(FP16Compressor(True, True), NoneMemory()), grace.fp16()),
    (grace_from_params({"compressor": "powersgd", "communicator": "allgather"}), grace.powersgd(1)),
    (
        grace_from_params({"compressor": "powersgd", "memory": "powersgd", "compress_rank": 4}),
        grace.powersgd(4),
    ),
    (grace_from_params({"compressor": "dgc", "memory": "dgc", "gradient_clipping": False}), grace.dgc(0.3)),
    (grace_from_params({"compressor": "inceptionn", "error_bound": 2e-12}), grace.inceptionn(2**-12)),
    (grace_from_params({"compressor": "topk", "kernel": "cupy", "lr": 0.3, "momentum": 5}), grace.topk(0.3)),
    (
        grace_from_params({"compressor": "topk", "seed": 3, "dense_below": 0}),
        grace.topk(0.3, seed=3, dense_below=0),
    ),
]


@pytest.mark.parametrize(("grc", "method"), SAME, ids=[str(method) for _, method in SAME])
def test_arguments_mean_what_they_meant(grc: Any, method: grace.Method) -> None:
    assert grc.method == method
    assert str(grc.method) == str(method)


REJECTED: list[tuple[Any, str]] = [
    (lambda: TopKCompressor(0.3, "float16"), "kernel='float16'.*value_dtype"),
    (lambda: DgcMemory(0.9, True), r"gradient_clipping=True.*grace\.dgc"),
    (lambda: DgcMemory(0.9, 0.3, 2), "gradient_clipping=0.3"),
    (lambda: TensorFlowPowerSGDCompressor(0.9, 2), "momentum_factor=0.9.*optimizer"),
    (lambda: PowerSGDCompressor(2, 4), "use_memory=4"),  # type: ignore[arg-type]
    (lambda: PowerSGDMemory(4), "q_memory=4"),
    (
        lambda: Allreduce(PowerSGDCompressor(2), PowerSGDMemory({}, 4)),
        "PowerSGDCompressor and PowerSGDMemory differ",
    ),
    (lambda: Allgather(EFSignSGDCompressor(0.3), EFSignSGDMemory(0.1)), r"lr=0\.3.*lr=0\.1"),
    (lambda: FP16Compressor(0.5), "average=0.5"),  # type: ignore[arg-type]
    (lambda: INCEPTIONNCompressor(4), r"error_bound=4.*grace\.inceptionn"),
    (lambda: compressors.AdapSparseCompressor(0.3), "AdapSparse.*TopKCompressor"),
    (
        lambda: Allgather(SignSGDCompressor(), ResidualMemory()),
        "signsgd does not work with memory 'residual'",
    ),
    (lambda: Allreduce(TopKCompressor(0.3), ResidualMemory()), "cannot go through allreduce.*allgather"),
    (lambda: Allgather(TopKCompressor, ResidualMemory()), "no compressor object"),  # type: ignore[arg-type]
    (lambda: Allgather(TopKCompressor(0.3), ResidualMemory), "no memory object"),  # type: ignore[arg-type]
    (lambda: grace_from_params("topk"), r"must be a dictionary.*grace\.parse"),  # type: ignore[arg-type]
    (lambda: grace_from_params({}), "names no compressor"),
    (lambda: grace_from_params({"ratio": 0.1}), r"'ratio': 0\.1.*names no compressor.*'compressor': 'topk'"),
    (lambda: grace_from_params({"compresor": "topk"}), "did you mean 'compressor'"),
    (lambda: grace_from_params({"compressor": "TopK"}), "did you mean 'topk'"),
    (lambda: grace_from_params({"compressor": "topk", "ration": 0.1}), "did you mean 'ratio'"),
    (lambda: grace_from_params({"compressor": "topk", "memory": "Residual"}), "did you mean 'residual'"),
    (lambda: grace_from_params({"compressor": "topk", "communicator": "gather"}), "did you mean 'allgather'"),
    (lambda: grace_from_params({"compressor": "dgc", "gradient_clipping": True}), "gradient_clipping=True"),
    (
        lambda: tensorflow_grace_from_params({"compressor": "powersgd", "momentum_factor": 0.9}),
        "momentum_factor",
    ),
]


@pytest.mark.parametrize(("build", "said"), REJECTED, ids=[said for _, said in REJECTED])
def test_what_cannot_be_meant_is_rejected_by_name(build: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build()


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (FP16Compressor, Allgather),
        (FP16Compressor, Allreduce),
        (NoneCompressor, Allreduce),
        (NaturalCompressor, Allgather),
        (OneBitCompressor, Allgather),
        (TernGradCompressor, Allgather),
    ],
)
def test_average_false_is_the_sum(kind: Any, way: Any) -> None:
    grads = [torch.randn(300, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]

    def result(average: bool) -> torch.Tensor:
        grc = way(kind(average, True), NoneMemory())
        return simulated(2).run(lambda t: grace.manual(grc, transport=t).step(grads[t.rank], "w"))[0]

    assert torch.allclose(result(False), 2 * result(True), atol=1e-6)


def test_helper_functions_of_the_compressors() -> None:
    from grace_dl.dist.compressor.powersgd import orthogonalize
    from grace_dl.dist.compressor.topk import desparsify, sparsify
    from grace_dl.torch.compressor import randomk

    x = torch.randn(10, 4)
    values, places = sparsify(x, 0.1, "torch")
    assert torch.equal(desparsify((values, places), 40).nonzero().view(-1), places.sort().values)
    places, values = randomk.sparsify(x, 0.1)
    assert torch.equal(x.view(-1)[places], values) and len(places) == 4
    orthogonalize(x)
    assert torch.allclose(x.t() @ x, torch.eye(4), atol=1e-5)
