"""The page of advised scripts, from its rows."""

from importlib.metadata import version
from typing import Final

from benchmarks.advise.row import AdvisedRow

PAGE: Final = """# Advised scripts

This table lists scripts that do not fit on a GPU, and the change that [`ullage advise`](advise.md) found for each
script. To verify a change, Git applied its diff to a copy of the script, and `ullage predict` ran this edited copy on
the same GPU (torch {torch}). "Verified" means that the edited copy fits on the GPU, and allocates and reserves
exactly as many bytes as `ullage advise` reported. {proved} of {count} changes are verified.{others}

| script | GPU (its memory) | without changes | advised change | with it | gradients | more computation | verified |
|---|---|---|---|---|---|---|---|
{rows}

The sizes in the table are peaks of used GPU memory in GiB, including the CUDA context. The column
"gradients" compares the gradients of the edited script with those of the original script.
"""


def page_of(rows: list[AdvisedRow], *, missing: int = 0) -> str:
    """Return the page's text; it names the number of scripts that were not run."""
    proved = sum(row.is_proved for row in rows)
    lines = "\n".join(_line(row) for row in rows)
    others = (
        f" {missing} more of `benchmarks/advise/cases.toml` {'was' if missing == 1 else 'were'} not run."
        if missing
        else ""
    )
    return PAGE.format(
        torch=version("torch").partition("+")[0], proved=proved, count=len(rows), rows=lines, others=others
    )


def _line(row: AdvisedRow) -> str:
    share = row.added_computation
    more = "" if share is None or share < 0.005 else f"about {100 * share:.0f} %"
    if row.host_bytes:
        more += f"{', ' if more else ''}{_gib(row.host_bytes)} GiB copied to the host and back"
    name = " ".join([row.name, *row.arguments])
    cells = (
        name,
        f"{row.gpu} ({_gib(row.total_bytes)})",
        _gib(row.before_bytes),
        row.change,
        _gib(row.after_bytes),
        row.gradients,
        more,
        "yes" if row.is_proved else f"**no**: {row.problem or 'different byte counts'}",
    )
    return f"| {' | '.join(cells)} |"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f}"
