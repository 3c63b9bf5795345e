"""Horovod's PyTorch operations, also in a process that has initialised Horovod only for TensorFlow.

Horovod keeps its two frameworks separate, each with its own connections. Both would look up their peers under the same
names in the launcher's rendezvous server, and could find those of the other framework. The second framework therefore
gets its own rendezvous server, which rank 0 runs while all ranks connect.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from .horovod import HorovodTransport

_ADDRESS, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"


def horovod_transport(process_set: Any = None) -> HorovodTransport:
    """A transport on Horovod, whichever framework was initialised; all ranks must make the first call."""
    initialise()
    import horovod.torch as hvd
    from horovod.torch import mpi_ops

    from .horovod import HorovodTransport

    if process_set is None or process_set.process_set_id == 0:
        return HorovodTransport()
    for number, ranks in mpi_ops._basics._get_process_set_ids_and_ranks().items():
        if list(ranks) == list(process_set.ranks):
            mine = hvd.ProcessSet(list(ranks))
            mine.process_set_id = number
            return HorovodTransport(mine)
    raise ConfigError(
        f"{process_set} is not known to Horovod's PyTorch half; give it to hvd.init(process_sets=...), or register it "
        "with horovod.torch.add_process_set() too."
    )


def initialise() -> None:
    """Initialise Horovod for PyTorch, if necessary, with the ranks and process sets of TensorFlow's Horovod."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise MissingExtraError(
            "Horovod was built without PyTorch, through which gradients travel for TensorFlow too; build it with "
            "`grace horovod install` in this environment."
        ) from error
    if hvd.is_initialized():
        return
    other = sys.modules["horovod.tensorflow"]
    sets = other.mpi_ops._basics._get_process_set_ids_and_ranks()
    members = [hvd.ProcessSet(list(ranks)) for number, ranks in sorted(sets.items()) if number]
    with _directory(other):
        hvd.init(process_sets=members)


@contextmanager
def _directory(other: Any) -> Iterator[None]:
    """A rendezvous server for one initialisation; ranks learn its address through the other framework's Horovod."""
    if other.size() == 1 or _ADDRESS not in os.environ:  # single process, or under MPI
        yield
        return
    import tensorflow as tf

    before = {name: os.environ[name] for name in (_ADDRESS, _PORT)}
    server = None
    place = None
    if other.rank() == 0:
        host = _own_address(before[_ADDRESS], int(before[_PORT]))
        server = _Directory((host, 0), _Entry)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = (host, server.server_address[1])
    try:
        with tf.init_scope():
            host, port = other.broadcast_object(place, root_rank=0, name="grace.directory")
        os.environ.update({_ADDRESS: host, _PORT: str(port)})
        yield
        with tf.init_scope():  # rank 0 continues only when all have connected
            other.allreduce(tf.zeros(1), name="grace.connected")
    finally:
        os.environ.update(before)
        if server is not None:
            server.shutdown()
            server.server_close()


def _own_address(host: str, port: int) -> str:
    """The address of this machine on its route to the launcher, where others can reach it. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


class _Directory(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.entries: dict[str, bytes] = {}


class _Entry(BaseHTTPRequestHandler):
    """PUT, GET and DELETE of one entry, as Horovod's Gloo requests them."""

    server: _Directory

    def do_PUT(self) -> None:
        self.server.entries[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_GET(self) -> None:
        entry = self.server.entries.get(self.path)
        self._answer(404 if entry is None else 200, entry or b"")

    def do_DELETE(self) -> None:
        self._answer(200)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
