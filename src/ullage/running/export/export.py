"""Writes memory samples to files and serves metrics during `ullage run`, once a second."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ullage.base.errors import UsageError
from ullage.base.output import check_output
from ullage.running.export.table import CsvFile, ParquetFile, SampleTable


class _Export(Protocol):
    def update(self, folder: Path) -> None: ...

    def finish(self, folder: Path) -> None: ...


class Exports:
    """All exports that the user has requested. If one fails, the others and the run continue."""

    def __init__(self, exports: list[_Export], notify: Callable[[str], Any]) -> None:
        self._exports = exports
        self._notify = notify

    def update(self, folder: Path) -> None:
        """Export the new memory samples of a run. `folder` is the folder of the run."""
        self._each(lambda export: export.update(folder))

    def finish(self, folder: Path) -> None:
        """Export the last memory samples at the end of the run."""
        self._each(lambda export: export.finish(folder))

    def _each(self, do: Callable[[_Export], None]) -> None:
        for export in list(self._exports):
            try:
                do(export)
            except Exception as error:
                self._exports.remove(export)
                self._notify(f"an export has failed ({type(error).__name__}: {error}); the run continues")


def open_exports(
    *,
    csv: Path | None,
    parquet: Path | None,
    prometheus: str | None,
    otlp: str | None = None,
    notify: Callable[[str], Any],
) -> Exports:
    """Open all exports before the run starts, so that invalid options fail early.

    Args:
        csv: the path of a CSV file for memory samples.
        parquet: the path of a Parquet file for memory samples.
        prometheus: the port of an endpoint, or its address and port.
        otlp: the URL of a collector to which metrics are sent.
        notify: a function that shows a message to the user.

    Raises:
        UsageError: a file cannot be written, a port is not available, or a package is missing.
    """
    exports: list[_Export] = []
    if csv is not None:
        check_output("csv", csv)
        exports.append(SampleTable(csv, CsvFile, notify))
    if parquet is not None:
        check_output("parquet", parquet, inputs=(csv,) if csv is not None else ())
        _need("pyarrow", "--parquet")
        exports.append(SampleTable(parquet, ParquetFile, notify))
    if prometheus is not None:
        _need("prometheus_client", "--prometheus")
        from ullage.running.export.prometheus import Endpoint

        endpoint = Endpoint(prometheus)
        exports.append(endpoint)
        notify(f"metrics for Prometheus are available at {endpoint.url}")
    if otlp is not None:
        _need("prometheus_client", "--otlp", extra="otlp")
        _need("opentelemetry.exporter.otlp.proto.http", "--otlp", extra="otlp")
        from ullage.running.export.otlp import OtlpSender

        exports.append(OtlpSender(otlp, notify))
    return Exports(exports, notify)


def _need(package: str, option: str, *, extra: str = "export") -> None:
    try:
        is_there = find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        is_there = False
    if not is_there:
        raise UsageError(
            f"{option} needs {package}, which is not installed; install it with: pip install 'ullage[{extra}]'"
        )
