"""An HTTP endpoint from which Prometheus reads the memory of a run's processes."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ullage.base.errors import UsageError
from ullage.running.export.metrics import OomCauses, metrics_of

_LOCAL: Final = "127.0.0.1"


class Endpoint(Collector):
    """An HTTP endpoint for Prometheus. The constructor binds the port, and `update` starts the server."""

    def __init__(self, address: str) -> None:
        """Bind the port.

        Args:
            address: a port that only this machine can reach, or an address and a port, such as "0.0.0.0:9400". Port 0
                selects any free port.

        Raises:
            UsageError: the address is malformed, or the port is in use.
        """
        host, port = _address_of(address)
        self._folder: Path | None = None
        self._causes = OomCauses()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server = _MetricsServer(host, port)
        except OSError as error:
            raise UsageError(
                f"--prometheus {address} cannot be used: {error.strerror or error}; expected an address of this "
                "machine "
                "and a free port (0: any free port)"
            ) from None
        self._server.set_app(make_wsgi_app(registry))

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}/metrics" if ":" in str(host) else f"http://{host!s}:{port}/metrics"

    def update(self, folder: Path) -> None:
        """Start to answer requests with the metrics of a run. `folder` is the folder of the run."""
        self._causes.look(folder)
        if self._folder is None:
            self._folder = folder
            threading.Thread(target=self._server.serve_forever, name="ullage-prometheus", daemon=True).start()

    def finish(self, folder: Path) -> None:
        """Do nothing. The endpoint remains available until this process ends."""

    def close(self) -> None:
        """Release the port."""
        if self._folder is not None:
            self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics of the run."""
        if self._folder is not None:
            yield from metrics_of(self._folder, self._causes.known)


class _MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Quiet)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""

    def server_bind(self) -> None:
        # `http.server` would look up the host name over the network
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    timeout = 10

    def log_message(self, *_: Any) -> None:
        """Write no log, because standard error belongs to the user's script."""


def _address_of(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else _LOCAL
    if not port.isdecimal() or int(port) > 65_535 or not host:
        raise UsageError(f"--prometheus {text} is not an address; expected a port, such as 9400, or ADDRESS:PORT")
    return host, int(port)
