"""The original GRACE's compressors: its constructors over the methods of `grace_dl.methods`.

Each positional argument has its original meaning, or is rejected. With the communicators of `communicators.py` they run
as the method of the same name, `grace.topk(...)` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..compressor.base import Compressor, Context, Payload, working
from ..compressor.cast import shares
from ..compressor.codec import Codec
from ..errors import ConfigError
from ..key import Key
from ..methods import (
    adaq,
    dgc,
    efsignsgd,
    fp16,
    inceptionn,
    natural,
    none,
    onebit,
    powersgd,
    qsgd,
    randomk,
    signsgd,
    signum,
    sketch,
    terngrad,
    threshold,
    topk,
    u8bit,
)
from ..settings import flag, number

KERNELS = ("torch", "cupy", "rdxtopk_cuda")
RANK = 1
"""The original's default rank of PowerSGD."""


class Original(Compressor):
    """Shared by all compressors of the original."""

    tensors_size_are_same: bool = True

    def compress(self, tensor: Tensor, name: str) -> tuple[Payload, Any]:
        """Encode one gradient; called from user code, each call is a step with its own random draws."""
        if not isinstance(self, Codec):
            return super().compress(tensor, name)
        calls: dict[str, int] = vars(self).setdefault("_calls", {})
        calls[name] = calls.get(name, -1) + 1
        key = Key(name, step=calls[name])
        payload, _ = self.encode(working(tensor), key)
        return payload, Context(tensor.shape, tensor.dtype, key)

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        """Combine the decoded tensors of all ranks: their sum."""
        return sum(tensors[1:], tensors[0])


class _Averaging(Original):
    """Compressors with `average` and `tensors_size_are_same`; sizes are exchanged if they may differ."""

    def __init__(self, average: bool = True, tensors_size_are_same: bool = True) -> None:
        super().__init__()
        if not flag("average", average):
            self.average = False
        flag("tensors_size_are_same", tensors_size_are_same)


class _Selecting(Original):
    """Compressors that send a share of the elements."""

    ratio: float

    @property
    def compress_ratio(self) -> float:
        return self.ratio


class _Voting(Original):
    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sign of the majority."""
        return torch.sign(super().aggregate(tensors))


class FP16Compressor(_Averaging, fp16.FP16Compressor):
    __doc__ = fp16.FP16Compressor.__doc__

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        super().accumulate_(out, payload, ctx)
        if not self.average:
            # If payloads are summed, each rank has sent its share of the mean.
            out.mul_(shares(ctx.key))


class NaturalCompressor(_Averaging, natural.NaturalCompressor):
    __doc__ = natural.NaturalCompressor.__doc__


class NoneCompressor(_Averaging, none.NoneCompressor):
    __doc__ = none.NoneCompressor.__doc__


class OneBitCompressor(_Averaging, onebit.OneBitCompressor):
    __doc__ = onebit.OneBitCompressor.__doc__


class TernGradCompressor(_Averaging, terngrad.TernGradCompressor):
    __doc__ = terngrad.TernGradCompressor.__doc__


class U8bitCompressor(_Averaging, u8bit.U8bitCompressor):
    __doc__ = u8bit.U8bitCompressor.__doc__


class SignSGDCompressor(_Voting, _Averaging, signsgd.SignSGDCompressor):
    __doc__ = signsgd.SignSGDCompressor.__doc__


class SignumCompressor(_Voting, signum.SignumCompressor):
    __doc__ = signum.SignumCompressor.__doc__

    def __init__(self, momentum: float) -> None:
        super().__init__(momentum)

    @property
    def momentum_factor(self) -> float:
        return self.momentum


class TopKCompressor(_Selecting, topk.TopKCompressor):
    """Sends the largest magnitudes. kernel: accepted; the selection is that of `grace.topk` on every device.

    >>> TopKCompressor(0.3).compress_ratio
    0.3
    """

    def __init__(self, compress_ratio: float, kernel: str = "torch") -> None:
        if kernel not in KERNELS:
            raise ConfigError(
                f"kernel={kernel!r} is unknown; it was one of {', '.join(KERNELS)} and has no effect here. For values in "
                "half precision use grace.topk(ratio, value_dtype='float16')."
            )
        super().__init__(compress_ratio)


class RandomKCompressor(_Selecting, randomk.RandomKCompressor):
    __doc__ = randomk.RandomKCompressor.__doc__

    def __init__(self, compress_ratio: float) -> None:
        super().__init__(compress_ratio)


class AdaqCompressor(_Selecting, adaq.AdaqCompressor):
    __doc__ = adaq.AdaqCompressor.__doc__

    def __init__(self, compress_ratio: float) -> None:
        super().__init__(compress_ratio)


class DgcCompressor(_Selecting, dgc.DgcCompressor):
    __doc__ = dgc.DgcCompressor.__doc__

    def __init__(self, compress_ratio: float) -> None:
        super().__init__(compress_ratio)


class ThresholdCompressor(Original, threshold.ThresholdCompressor):
    __doc__ = threshold.ThresholdCompressor.__doc__

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)


class EFSignSGDCompressor(Original, efsignsgd.EFSignSGDCompressor):
    __doc__ = efsignsgd.EFSignSGDCompressor.__doc__

    def __init__(self, lr: float) -> None:
        super().__init__(lr)

    @property
    def learning_rate(self) -> float:
        return self.lr

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of the decoded tensors, in units of the gradient."""
        return super().aggregate(tensors) / self.lr

    def finish_(self, out: Tensor, workers: int) -> None:
        out.div_(workers)  # `aggregate` has divided by lr


class QSGDCompressor(Original, qsgd.QSGDCompressor):
    """Levels of a bucket's norm, stochastically rounded, as in `grace.qsgd`."""

    def __init__(self, quantum_num: int, bucket_size: int = 128) -> None:
        super().__init__(quantum_num, bucket_size)


class SketchCompressor(Original, sketch.SketchCompressor):
    __doc__ = sketch.SketchCompressor.__doc__

    def __init__(self, quantiles: int) -> None:
        super().__init__(quantiles)


class INCEPTIONNCompressor(Original, inceptionn.INCEPTIONNCompressor):
    """Drops values below a bound. error_bound: in the original's unit, where 2e-10 means a bound of 2**-10.

    >>> INCEPTIONNCompressor(2e-10).error_bound == 2**-10
    True
    """

    def __init__(self, error_bound: float) -> None:
        super().__init__(inceptionn_bound(error_bound))


def inceptionn_bound(error_bound: float) -> float:
    """Convert the original's `error_bound`, whose decimal exponent is used as a binary one, to the actual bound."""
    if not 0 < number("error_bound", error_bound, "2e-10 stands for 2**-10, as in the original") < 1:
        raise ConfigError(
            f"error_bound={error_bound!r} must lie between 0 and 1; 2e-10 stands for 2**-10, as in the original. To give the "
            "bound itself use grace.inceptionn(2**-10)."
        )
    return 2.0 ** int(math.log10(error_bound / 2))


class PowerSGDCompressor(Original, powersgd.PowerSGDCompressor):
    """Low rank. rank: that of the factors, unless `PowerSGDMemory` gives it.

    use_memory: accepted and ignored; factors are always warm-started. world_size: accepted and ignored.
    """

    def __init__(
        self, rank: int | None = None, use_memory: bool = False, world_size: int | None = None
    ) -> None:
        super().__init__(RANK if rank is None else rank)
        self._given = rank
        flag("use_memory", use_memory)

    @property
    def q_memory(self) -> dict[str, Any]:
        """For `PowerSGDMemory(compressor.q_memory, rank)`; a handle owns the factors."""
        return {}


class TensorFlowPowerSGDCompressor(PowerSGDCompressor):
    """Low rank, with the constructor of the original for TensorFlow.

    momentum_factor: must be 0; use the optimizer's momentum. The rank is that of `PowerSGDMemory`.
    """

    def __init__(self, momentum_factor: float = 0.0, world_size: int | None = None) -> None:
        reject_momentum(momentum_factor)
        super().__init__()


def reject_momentum(momentum_factor: Any) -> None:
    """The original for TensorFlow adds momentum to PowerSGD's result; here only 0 is accepted."""
    if momentum_factor:
        raise ConfigError(
            f"momentum_factor={momentum_factor!r}: PowerSGD adds no momentum to its result here. Give 0, and momentum to the "
            "optimizer; the rank is set by PowerSGDMemory(compressor.q_memory, compress_rank)."
        )


class AdapSparseCompressor:
    """Rejected: no communicator of the original could run it."""

    def __init__(self, compress_ratio: float) -> None:
        raise ConfigError(
            "AdapSparse is not provided: in the original, compress() lacked an argument, so that no communicator could run it. "
            "Use AdaqCompressor(compress_ratio) or TopKCompressor(compress_ratio)."
        )


NaturalCompressor_CUDA = NaturalCompressor
QSGDCompressor_CUDA = QSGDCompressor
