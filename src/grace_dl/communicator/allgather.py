"""Every rank gets every rank's payload; works with every one-round method."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compressor.base import Compressor, Payload
from ..errors import ConfigError, PayloadError
from ..pipeline.bucket import Bucket
from ..pipeline.driver import Program
from ..pipeline.frame import UNUSED, USED, FixedFrame, align, pack, shaped_like, unpack
from ..pipeline.outline import NOTHING, Estimate, Stage, blank, load_of
from ..pipeline.request import Gather, Request, Verdict
from .base import Plan
from .inspection import Inspection, stacked
from .segments import SegmentCommunicator
from .transaction import BucketTransaction


@dataclass(slots=True)
class Frames:
    """Fixed frames of one bucket: sent and received frames, and views of both."""

    send: Tensor
    receive: Tensor
    flags: Tensor
    payloads: list[Payload]
    all_flags: Tensor
    """The flags of all ranks: (ranks, segments)."""
    peers: list[list[Payload]]


Received = Sequence[Sequence[Payload | None]]
"""Payloads by rank and segment; None where a rank has flagged its segment and sends nothing."""


class Allgather(SegmentCommunicator):
    """Gathers the payloads of all ranks on each; traffic grows with the number of ranks."""

    name = "allgather"
    refusal = "it averages in several rounds"

    @classmethod
    def carries(cls, compressor: type[Compressor]) -> bool:
        return not compressor.multi_round

    @property
    def channels(self) -> int:
        return 1 if self.compressor.spec(1, torch.float32) is not None else 2

    def relative_traffic(self) -> float | None:
        numel = 1 << 20
        payload = self.compressor.typical_bytes(numel)
        # payload (W - 1) over 2 (4 numel) (W - 1) / W
        return None if payload is None else payload * self.transport.size / (8 * numel)

    def program(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        transaction = BucketTransaction(self.transport)
        inspection = Inspection([segment.name for segment in bucket.segments], [transaction])
        try:
            if plan.layout is None:
                flags, payloads = yield from self._varying_round(bucket, plan, transaction)
            else:
                flags, payloads = yield from self._fixed_round(bucket, plan, transaction)
            self._inspect(plan, transaction, payloads, inspection)
            commit = yield inspection.gathered(flags, [segment.used for segment in bucket.segments])
        except BaseException:
            transaction.abort()
            raise
        left = self._decide(bucket, transaction, inspection.joint, commit)
        coded = [place for place in plan.coded if place in left]
        if commit:
            transaction.commit(coded)
        outs = [self._output(bucket.segments[place]) for place in coded]
        sent = [[peer[place] or [] for peer in payloads] for place in coded]
        self.compressor.combine_all_(outs, sent, [transaction.pending(place).ctx for place in coded])
        self.memory.after_coded_(outs, [bucket.segments[place].name for place in coded], commit)
        for place, out in zip(coded, outs):
            self._store(bucket.segments[place], out)
        dense = [place for place in plan.dense if place in left]
        parts = [[part for place in dense for part in peer[place] or ()] for peer in payloads]
        self._dense_results(bucket, dense, parts, commit)

    def _inspect(
        self,
        plan: Plan,
        transaction: BucketTransaction,
        payloads: Received,
        inspection: Inspection,
    ) -> None:
        """Check the payloads of all ranks."""
        pendings = [(place, transaction.find(place)) for place in plan.coded]
        for rank, of_rank in enumerate(payloads):
            for place, pending in pendings:
                payload = of_rank[place]
                if payload is not None and pending is not None:
                    inspection.add(rank, place, self.compressor.faults(payload, pending.ctx))
            for place in plan.dense:
                payload = of_rank[place]
                if payload is not None:
                    inspection.add(rank, place, self._dense_fault(payload[0]))

    def outline(self, bucket: Bucket, estimate: Estimate | None = None) -> list[Stage]:
        dense = self._dense_flags(bucket)
        size = self.transport.size
        coded = load_of(segment for segment, d in zip(bucket.segments, dense) if not d)
        frame = self._frame(bucket, dense)
        stages = []
        if frame is not None:
            nbytes, before = frame.nbytes, coded
        else:
            if estimate is None:
                raise ConfigError(
                    f"the payload size of {self.label} depends on the data; pass an estimate of it."
                )
            kinds = zip(bucket.segments, dense)
            nbytes = sum(align(s.flat.nbytes if d else estimate(s.flat.numel())) + 40 for s, d in kinds)
            stages = [Stage(self._meet(blank(8 * size), blank(8)), encode=coded)]
            before = NOTHING
        stages.append(Stage(self._meet(blank(size * nbytes), blank(nbytes)), encode=before))
        return [*stages, Stage(None, decode=coded._replace(payloads=size))]

    # Frames of known size -----------------------------------------------------------------------------

    def _frame(self, bucket: Bucket, dense: Sequence[bool]) -> FixedFrame | None:
        """The layout of a bucket's payloads; None if their size depends on the data."""
        specs = [self._spec(segment, d) for segment, d in zip(bucket.segments, dense)]
        if any(spec is None for spec in specs):
            return None
        return FixedFrame([spec for spec in specs if spec is not None])

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Frames | None:
        frame = self._frame(bucket, dense)
        if frame is None:
            return None
        size = self.transport.size
        send = torch.zeros(frame.nbytes, dtype=torch.uint8, device=bucket.device)
        receive = torch.empty(size * frame.nbytes, dtype=torch.uint8, device=bucket.device)
        parts = receive.split(frame.nbytes)
        return Frames(
            send,
            receive,
            frame.flags(send),
            frame.payloads(send),
            receive.view(size, frame.nbytes)[:, : len(bucket.segments)],
            [frame.payloads(part) for part in parts],
        )

    def _fixed_round(
        self, bucket: Bucket, plan: Plan, transaction: BucketTransaction
    ) -> Generator[Request | Verdict, Any, tuple[Tensor, Received]]:
        frames: Frames = plan.layout
        mine = self._begin(bucket, plan, transaction, frames.payloads)
        frames.flags.copy_(mine)
        yield self._meet(frames.receive, frames.send)
        return frames.all_flags, frames.peers

    def _meet(self, receive: Tensor, send: Tensor, read: bool = False) -> Request:
        return Gather(receive, send, read=read)

    # Frames whose size depends on the data: lengths are sent first ------------------------------------

    def _varying_round(
        self, bucket: Bucket, plan: Plan, transaction: BucketTransaction
    ) -> Generator[Request | Verdict, Any, tuple[Tensor, Received]]:
        raw: list[Payload | None] = [None] * len(bucket.segments)
        for place in plan.dense:
            raw[place] = [torch.empty_like(bucket.segments[place].flat)]
        mine = self._begin(bucket, plan, transaction, raw).tolist()
        outs = [
            (raw[place] or transaction.pending(place).payload) if flag in (USED, UNUSED) else None
            for place, flag in enumerate(mine)
        ]
        frame = pack(mine, outs, bucket.device)
        size = self.transport.size
        lengths = torch.empty(size, dtype=torch.int64, device=bucket.device)
        announced = torch.tensor([frame.numel()], dtype=torch.int64, device=bucket.device)
        yield self._meet(lengths, announced, read=True)
        limit = 8 * bucket.nbytes + 65536 * len(bucket.segments)
        longest = max(lengths.tolist())
        for rank, length in enumerate(lengths.tolist()):
            # The same decision on every rank, even on the one that sent it: otherwise some would start a round alone.
            if size > 1 and (not 0 < length <= limit or length % 8):
                raise PayloadError(
                    f"rank {rank} announces {length} bytes for {bucket.nbytes} bytes of gradients: broken bytes, or a "
                    "compressor that makes tensors far larger."
                )
        padded = torch.zeros(longest, dtype=torch.uint8, device=bucket.device)
        fits = min(frame.numel(), longest)  # less than the frame if its length was damaged on the way
        padded[:fits] = frame[:fits]
        receive = torch.empty(size * longest, dtype=torch.uint8, device=bucket.device)
        yield self._meet(receive, padded, read=True)
        flags, payloads = [], []
        for rank, (part, length) in enumerate(zip(receive.split(longest), lengths.tolist())):
            of_rank, payload = unpack(part[:length], len(bucket.segments), rank)
            flags.append(of_rank)
            ordinary = [
                parts if own is None else shaped_like(parts, own) for parts, own in zip(payload, outs)
            ]
            payloads.append([p if flag in (USED, UNUSED) else None for p, flag in zip(ordinary, of_rank)])
        self._check_dense(bucket, plan, payloads)
        return stacked(flags), payloads

    @staticmethod
    def _check_dense(bucket: Bucket, plan: Plan, payloads: list[list[Payload | None]]) -> None:
        for rank, payload in enumerate(payloads):
            for place in plan.dense:
                segment, parts = bucket.segments[place], payload[place]
                if parts is not None and (
                    len(parts) != 1
                    or parts[0].dtype != bucket.dtype
                    or parts[0].numel() != segment.flat.numel()
                ):
                    raise PayloadError(
                        f"rank {rank} sent something else than {segment.flat.numel()} {bucket.dtype} for {segment.name!r}."
                    )


__all__ = ["Allgather"]
