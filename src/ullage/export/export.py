"""What is asked for of a run: files of its samples, an endpoint. Each is looked after once a second while it runs."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ullage._errors import UsageError
from ullage._output import check_output
from ullage.export.table import CsvFile, ParquetFile, Table


class _Export(Protocol):
    def look(self, folder: Path) -> None: ...

    def end(self, folder: Path) -> None: ...


class Exports:
    """All of them. Whatever fails in one is told in a sentence, and neither the others nor the run notice."""

    def __init__(self, exports: list[_Export], tell: Callable[[str], Any]) -> None:
        self._exports = exports
        self._tell = tell

    def look(self, folder: Path) -> None:
        """Hand on what is new in the folder of a run."""
        for export in list(self._exports):
            self._try(export, export.look, folder)

    def end(self, folder: Path) -> None:
        """Hand on what is left, when the run has ended."""
        for export in list(self._exports):
            self._try(export, export.end, folder)

    def _try(self, export: _Export, do: Callable[[Path], None], folder: Path) -> None:
        try:
            do(folder)
        except Exception as error:
            self._exports.remove(export)
            self._tell(f"an export has ended ({type(error).__name__}: {error}); the run goes on")


def open_exports(
    *, csv: Path | None, parquet: Path | None, prometheus: str | None, tell: Callable[[str], Any]
) -> Exports:
    """Prepare what is asked for, so that what cannot be is refused before anything has run.

    Args:
        csv: a file of samples.
        parquet: another.
        prometheus: a port, or an address and a port, of an endpoint.
        tell: called with a sentence where something is to be told.

    Raises:
        UsageError: a file cannot be written, a port cannot be had, or a package is missing.
    """
    exports: list[_Export] = []
    if csv is not None:
        check_output("--csv", csv)
        exports.append(Table(csv, CsvFile, tell))
    if parquet is not None:
        check_output("--parquet", parquet, inputs=(csv,) if csv is not None else ())
        _need("pyarrow", "--parquet")
        exports.append(Table(parquet, ParquetFile, tell))
    if prometheus is not None:
        _need("prometheus_client", "--prometheus")
        from ullage.export.prometheus import Endpoint

        endpoint = Endpoint(prometheus)
        exports.append(endpoint)
        tell(f"metrics for Prometheus are at {endpoint.url}")
    return Exports(exports, tell)


def _need(package: str, option: str) -> None:
    if find_spec(package) is None:
        raise UsageError(f"{option} needs {package}, which is not installed here: pip install 'ullage[export]'")
