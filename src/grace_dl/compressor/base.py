"""The base class `Compressor`: two methods are enough. `codec.py` holds the fast bases.

A compressor is a pure function of tensor, settings and key. It has no state between calls (`Memory`
holds it) and does not use the network (`Communicator` does).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..errors import GraceError, PayloadError
from ..kernels import Correction, Source
from ..kernels.faults import RESULT_NOT_FINITE, Fault
from ..kernels.wire import Spec as Spec
from ..kernels.wire import spec_bytes
from ..key import Key

Payload = list[Tensor]


class Compressor:
    """A lossy (or lossless) encoding of one tensor.

    A subclass with `compress` and `decompress` works with every integration. The other methods are optional fast
    paths whose defaults are built on these two. Properties are class attributes, so that no `isinstance` check
    is needed.

    `average`, `tensors_size_are_same` and an `aggregate(tensors)` method are supported for subclasses written for the
    original GRACE; sizes are exchanged between ranks, so `tensors_size_are_same` has no effect.
    """

    sums: ClassVar[bool] = False
    """Payloads of several ranks can be summed and decoded once (all-reduce)."""
    biased: ClassVar[bool] = True
    """The expectation of the decoded value differs from the input: needs error feedback."""
    elementwise: ClassVar[bool] = False
    """A slice of a tensor can be compressed on its own (all-to-all)."""
    whole_bucket: ClassVar[bool] = False
    """Tensor boundaries do not matter: a whole bucket can be encoded in one call."""
    layout_free: ClassVar[bool] = False
    """Takes the elements in memory order; does not need the tensor's own strides."""
    multi_round: ClassVar[bool] = False
    """Exchanges through `rounds` of its memory instead of one payload (low-rank methods)."""

    divides_first: ClassVar[bool] = False
    """Divides by the number of workers before payloads are summed (`key.summed`), so that the sum is the mean."""
    deferred: ClassVar[int] = 0
    """How many values `encode_from` defers to the next step (`Source.owed`); 0: it defers nothing."""
    lossless: ClassVar[bool] = False
    """Decodes to exactly the input, and accepts gradients of any dtype without conversion."""

    average: bool = True

    def __init__(self, average: bool = True, tensors_size_are_same: bool = True) -> None:
        self.average = average
        self.tensors_size_are_same = tensors_size_are_same

    def compress(self, tensor: Tensor, name: str) -> tuple[Payload, Any]:
        """Encode `tensor`; returns the tensors to send and a context that is the same on every rank."""
        raise NotImplementedError(f"{type(self).__name__} must define compress(tensor, name)")

    def decompress(self, payload: Payload, ctx: Any) -> Tensor:
        """Decode a payload of `compress`, on this rank or another."""
        raise NotImplementedError(f"{type(self).__name__} must define decompress(payload, ctx)")

    # Optional fast paths ------------------------------------------------------------------------------

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Any]:
        """`compress` with the whole key; writes into `out` (tensors that match `spec`) if given."""
        return self.compress(tensor, key.name)

    def encode_from(self, source: Source, key: Key, out: Payload | None = None) -> tuple[Payload, Any]:
        """Encode `beta * x + gamma * grad`, and store the residual or the encoded value in `x`, as requested."""
        x, grad, beta, gamma, leave, _ = source
        if leave == "input":
            return self.encode(x if grad is None else beta * x + gamma * grad, key, out)
        if leave == "deferred":
            raise NotImplementedError(
                f"{type(self).__name__} says deferred = {self.deferred}; define encode_from"
            )
        if grad is not None:
            # A separate product and sum, as in the kernels: `add_(…, alpha=…)` may fuse them and round once.
            x.mul_(beta).add_(grad if gamma == 1 else grad * gamma)
        try:
            payload, ctx = self.encode(x, key, out)
        except BaseException:
            if grad is not None:
                x.sub_(grad, alpha=gamma).div_(beta)
            raise
        # A payload may be a view of the input, which belongs to the memory.
        storage = x.untyped_storage().data_ptr()
        payload = [p.clone() if p.untyped_storage().data_ptr() == storage else p for p in payload]
        if leave == "residual":
            self.residual_(x, payload, ctx)
        return payload, ctx

    def encode_corrected_(
        self,
        states: Sequence[Correction],
        keys: Sequence[Key],
        momentum: float,
        nesterov: bool,
        outs: Sequence[Payload | None],
    ) -> tuple[list[tuple[Payload, Any]], Iterator[bool]]:
        """Accumulate each gradient into its momentum m and sum v (Lin 2018, equations 4 and 5) and encode the new v.

        Returns a list that holds the payloads once the iterator is exhausted, and the iterator, which processes one
        state at every `next`. It yields False if a gradient is refused: m and v are then restored, up to rounding.
        Sent elements stay in v until `settle_`.
        """
        found: list[tuple[Payload, Any]] = [([], None)] * len(keys)

        def one(place: int) -> bool:
            state = states[place]
            kernel = kernels.of(state.v)
            # On a device a gradient is cleaned and flagged before.
            if state.grad.is_cpu and not kernel.largest(state.grad) < state.limit:
                return False
            kernel.dgc_correct_(state, momentum, nesterov)
            try:
                source = Source(state.v, leave="compensated")
                found[place] = self.encode_from(source, keys[place], outs[place])
            except BaseException:
                kernel.dgc_undo_(state, momentum, nesterov)
                raise
            return True

        return found, map(one, range(len(keys)))

    def settle_(
        self,
        vs: Sequence[Tensor],
        ms: Sequence[Tensor] | None,
        payloads: Sequence[Payload],
        ctxs: Sequence[Any],
    ) -> None:
        """Remove the sent elements from `vs`, and zero their momenta (factor masking, Lin 2018, section 3.2) if given."""
        for place, (v, payload, ctx) in enumerate(zip(vs, payloads, ctxs)):
            self.residual_(v, payload, ctx)
            if ms is not None:
                m, sent = ms[place], self.decompress(payload, ctx)
                m.masked_fill_(sent.view_as(m) != 0, 0.0)

    def residual_(self, tensor: Tensor, payload: Payload, ctx: Any) -> None:
        """Subtract the value that peers decode from `tensor`, in place."""
        tensor.sub_(self._decoded(payload, ctx).view_as(tensor))

    def faults(self, payload: Payload, ctx: Any) -> Fault:
        """Check a peer's payload before anything is changed; `kernels.faults` explains the result.

        Tensors of a wrong number, dtype or length raise `PayloadError`. This default decodes the payload.
        """
        try:
            decoded = self._decoded(payload, ctx)
        except GraceError:
            raise
        except Exception as error:
            raise PayloadError(
                f"{type(self).__name__} cannot decode a payload of {len(payload)} tensors: {error!r}. It was damaged on "
                "the way, or the peer runs another method or version."
            ) from error
        most = (
            torch.finfo(torch.float32).max
            if not decoded.is_floating_point()
            else torch.finfo(decoded.dtype).max
        )
        return kernels.of(decoded).check_values(decoded, most, RESULT_NOT_FINITE)

    def _decoded(self, payload: Payload, ctx: Any) -> Tensor:
        """What `decompress` returns, as a PyTorch tensor."""
        return self.decompress(payload, ctx)

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Any) -> None:
        """`out += decode(payload)`."""
        out.add_(self._decoded(payload, ctx).view_as(out))

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Any) -> None:
        """Overwrite `out` with the result of the payloads of all ranks (or of one summed payload)."""
        aggregate = getattr(self, "aggregate", None)
        if aggregate is not None:
            total = aggregate([self.decompress(payload, ctx) for payload in payloads])
            out.copy_(total.view_as(out))
        else:
            out.zero_()
            for payload in payloads:
                self.accumulate_(out, payload, ctx)
        self.finish_(out, len(payloads))

    def combine_all_(
        self, outs: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], ctxs: Sequence[Any]
    ) -> None:
        """`combine_` for all tensors of a bucket."""
        for out, of_ranks, ctx in zip(outs, payloads, ctxs):
            self.combine_(out, of_ranks, ctx)

    def finish_(self, out: Tensor, workers: int) -> None:
        """Turn the sum over workers into the result; divides by their number unless `average` is False."""
        if self.average and workers != 1:
            out.div_(workers)

    def paired(self, feedback: bool) -> Compressor:
        """This compressor with memory-dependent settings resolved; `feedback`: whether error feedback is used."""
        return self

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a parameter of this shape is compressed; others are sent dense."""
        return True

    @property
    def warn(self) -> dict[str, str]:
        """Memories that are allowed but diverge with these settings: name to reason."""
        return {}

    def spec(self, numel: int, dtype: torch.dtype) -> Spec | None:
        """Dtypes and lengths of the payload of `numel` elements; None if the size depends on the data."""
        return None

    def payload_bytes(self, numel: int, dtype: torch.dtype = torch.float32) -> int | None:
        """Bytes on the wire for `numel` elements, without compressing; None if it depends on the data."""
        spec = self.spec(numel, dtype)
        return None if spec is None else spec_bytes(spec)

    def typical_bytes(self, numel: int) -> int | None:
        """About how many bytes `numel` float32 elements have on the wire; None if nothing is known of it."""
        return self.payload_bytes(numel)

    def settings(self) -> dict[str, Any]:
        """The settings that all ranks must share; compared before first use."""
        return {k: v for k, v in sorted(vars(self).items()) if not k.startswith("_")}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.settings().items() if k not in _LEGACY)
        return f"{type(self).__name__}({arguments})"


_LEGACY = ("average", "tensors_size_are_same")


class Context(NamedTuple):
    """The decoding context of built-in methods; the same on every rank except for `key.rank`."""

    shape: torch.Size
    dtype: torch.dtype
    key: Key

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


_WORKING = (torch.float32, torch.float64)


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic and state for gradients of `dtype`: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def narrow(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert `tensor` to a gradient's dtype; finite values out of range saturate instead of becoming infinite."""
    if dtype.itemsize < tensor.dtype.itemsize:
        largest = torch.finfo(dtype).max
        tensor = tensor.clamp(-largest, largest)
    return tensor.to(dtype)


def working(tensor: Tensor) -> Tensor:
    """`tensor`, contiguous and in its working dtype; copied only if necessary."""
    if tensor.dtype in _WORKING and not tensor.requires_grad and tensor.is_contiguous():
        return tensor
    return tensor.detach().to(work_dtype(tensor.dtype)).contiguous()
