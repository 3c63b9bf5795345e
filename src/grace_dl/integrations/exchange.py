"""Exchanges of whole sets of named tensors, outside a backward pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import Tensor

from ..pipeline.bucket import Segment, packed
from ..session import Session
from ..transport import Transport
from .local_parameters import grouped, shard


def average(
    session: Session, label: str, tensors: Mapping[str, Tensor], unused: Collection[str] | None = None
) -> tuple[bool, dict[str, Segment]]:
    """The averages of copies of `tensors` over ranks, by the session's method. All ranks call it.

    `unused`: names for which this rank has nothing to say; `Segment.used` of a result says whether any rank had. If it is None, all
    are used. Returns False first if a tensor was not finite on some rank; the results are NaN then, and state is as before.
    """
    if not tensors:
        return True, {}
    driver, buckets = session.driver(), []
    try:
        for place, members in enumerate(grouped(list(tensors), tensors)):
            bucket = packed((label, place), members, [tensors[name] for name in members])
            if unused is not None:
                bucket.flat = None  # a buffer that is averaged as a whole has no flags
                for segment in bucket.segments:
                    segment.used = segment.name not in unused
            driver.launch(bucket)
            buckets.append(bucket)
        finite = driver.finish()
    except BaseException as error:
        driver.discard(error)
        raise
    return finite, {segment.name: segment for bucket in buckets for segment in bucket.segments}


def broadcast(transport: Transport, tensors: Iterable[Tensor]) -> None:
    """Give all ranks the tensors of rank 0; of a sharded one, the shards. All ranks call it."""
    if transport.size == 1:
        return
    for tensor in tensors:
        mine = shard(tensor.detach())
        sent = mine.contiguous()
        transport.broadcast(sent, 0).wait()
        mine.copy_(sent)
