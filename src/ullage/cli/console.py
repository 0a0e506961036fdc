"""The terminal that reports are drawn on."""

from rich.console import Console


class ReportConsole(Console):
    """A console whose closed pipe ends the process as other programs end."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: rich's own exit code for it, 1, would mean "does not fit"."""
        raise BrokenPipeError
