"""Every rank gets every rank's payload; works with every one-round method."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compressor.base import Compressor, Payload
from ..errors import PayloadError
from ..pipeline.bucket import Bucket
from ..pipeline.driver import Program
from ..pipeline.frame import (
    FAILED,
    NONFINITE,
    UNUSED,
    USED,
    FixedFrame,
    check_flags,
    pack,
    shaped_like,
    unpack,
)
from ..pipeline.request import Gather, Request, Verdict
from .base import Communicator, Plan
from .transaction import BucketTransaction, peer_errors


@dataclass(slots=True)
class Frames:
    """Fixed frames of one bucket: sent and received frames, and views of both."""

    send: Tensor
    receive: Tensor
    flags: Tensor
    payloads: list[Payload]
    peers: list[tuple[Tensor, list[Payload]]]


class Allgather(Communicator):
    """Gathers the payloads of all ranks on each; traffic grows with the number of ranks."""

    name = "allgather"
    refusal = "it averages in several rounds"

    @classmethod
    def carries(cls, compressor: type[Compressor]) -> bool:
        return not compressor.multi_round

    @property
    def channels(self) -> int:
        return 1 if self.compressor.spec(1, torch.float32) is not None else 2

    def program(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        transaction = BucketTransaction()
        try:
            if plan.layout is None:
                flags, payloads = yield from self._varying_round(bucket, plan, transaction)
            else:
                flags, payloads = yield from self._fixed_round(bucket, plan, transaction)
            # The combined flag of a segment is the worst over all ranks.
            verdict = [max(of_ranks) for of_ranks in zip(*flags)]
            commit = yield Verdict(
                NONFINITE not in verdict and FAILED not in verdict,
                transaction.errors or _first_failure(flags),
            )
        except BaseException:
            transaction.abort()
            raise
        left = self._decide(bucket, transaction, verdict, commit)
        coded = [place for place in plan.coded if place in left]
        if commit:
            transaction.commit(coded)
        outs = [self._output(bucket.segments[place]) for place in coded]
        sent = [[peer[place] for peer in payloads] for place in coded]
        self.compressor.combine_all_(outs, sent, [transaction.pending(place).ctx for place in coded])
        for place, out in zip(coded, outs):
            self._store(bucket.segments[place], out)
        dense = [place for place in plan.dense if place in left]
        self._dense_results(bucket, dense, [[peer[place][0] for place in dense] for peer in payloads], commit)

    # Frames of known size -----------------------------------------------------------------------------

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Frames | None:
        specs = [self._spec(segment, d) for segment, d in zip(bucket.segments, dense)]
        if any(spec is None for spec in specs):
            return None
        frame = FixedFrame([spec for spec in specs if spec is not None])
        size = self.transport.size
        send = torch.zeros(frame.nbytes, dtype=torch.uint8, device=bucket.device)
        receive = torch.empty(size * frame.nbytes, dtype=torch.uint8, device=bucket.device)
        parts = receive.split(frame.nbytes)
        return Frames(
            send,
            receive,
            frame.flags(send),
            frame.payloads(send),
            [(frame.flags(p), frame.payloads(p)) for p in parts],
        )

    def _fixed_round(
        self, bucket: Bucket, plan: Plan, transaction: BucketTransaction
    ) -> Generator[Request | Verdict, Any, tuple[list[list[int]], list[list[Payload]]]]:
        frames: Frames = plan.layout
        mine = self._begin(bucket, plan, transaction, frames.payloads)
        frames.flags.copy_(torch.tensor(mine, dtype=torch.uint8))
        yield self._meet(frames.receive, frames.send)
        flags = [peer.tolist() for peer, _ in frames.peers]
        for rank, of_rank in enumerate(flags):
            check_flags(of_rank, rank)
        return flags, [payloads for _, payloads in frames.peers]

    def _meet(self, receive: Tensor, send: Tensor) -> Request:
        return Gather(receive, send)

    # Frames whose size depends on the data: lengths are sent first ------------------------------------

    def _varying_round(
        self, bucket: Bucket, plan: Plan, transaction: BucketTransaction
    ) -> Generator[Request | Verdict, Any, tuple[list[list[int]], list[list[Payload]]]]:
        raw: list[Payload | None] = [None] * len(bucket.segments)
        for place in plan.dense:
            raw[place] = [torch.empty_like(bucket.segments[place].flat)]
        mine = self._begin(bucket, plan, transaction, raw)
        outs = [
            (raw[place] or transaction.pending(place).payload) if flag in (USED, UNUSED) else None
            for place, flag in enumerate(mine)
        ]
        frame = pack(mine, outs, bucket.device)
        size = self.transport.size
        lengths = torch.empty(size, dtype=torch.int64, device=bucket.device)
        yield self._meet(lengths, torch.tensor([frame.numel()], dtype=torch.int64, device=bucket.device))
        limit = 8 * bucket.nbytes + 65536 * len(bucket.segments)
        longest = max(lengths.tolist())
        for rank, length in enumerate(lengths.tolist()):
            if not 0 < length <= max(limit, frame.numel()) or length % 8:
                raise PayloadError(
                    f"rank {rank} announces {length} bytes for {bucket.nbytes} bytes of gradients: broken bytes, or a "
                    "compressor that makes tensors far larger."
                )
        padded = torch.zeros(longest, dtype=torch.uint8, device=bucket.device)
        padded[: frame.numel()] = frame
        receive = torch.empty(size * longest, dtype=torch.uint8, device=bucket.device)
        yield self._meet(receive, padded)
        flags, payloads = [], []
        for rank, (part, length) in enumerate(zip(receive.split(longest), lengths.tolist())):
            of_rank, payload = unpack(part[:length], len(bucket.segments), rank)
            check_flags(of_rank, rank)
            flags.append(of_rank)
            payloads.append(
                [parts if own is None else shaped_like(parts, own) for parts, own in zip(payload, outs)]
            )
        self._check_dense(bucket, plan, flags, payloads)
        return flags, payloads

    @staticmethod
    def _check_dense(
        bucket: Bucket, plan: Plan, flags: list[list[int]], payloads: list[list[Payload]]
    ) -> None:
        for rank, (of_rank, payload) in enumerate(zip(flags, payloads)):
            for place in plan.dense:
                if of_rank[place] in (NONFINITE, FAILED):
                    continue
                segment, parts = bucket.segments[place], payload[place]
                if (
                    len(parts) != 1
                    or parts[0].dtype != bucket.dtype
                    or parts[0].numel() != segment.flat.numel()
                ):
                    raise PayloadError(
                        f"rank {rank} sent something else than {segment.flat.numel()} {bucket.dtype} for {segment.name!r}."
                    )


def _first_failure(flags: list[list[int]]) -> list[Exception]:
    for rank, of_rank in enumerate(flags):
        if FAILED in of_rank:
            return peer_errors(of_rank, f"rank {rank}")
    return []


__all__ = ["Allgather"]
