"""The page of advised scripts, from its rows."""

from importlib.metadata import version
from typing import Final

from benchmarks.advise.row import AdvisedRow

PAGE: Final = """# Advised scripts

Each script was given to [`ullage advise`](advise.md) with a card on which it does not
fit. Git applied the patch in a copy, and `ullage predict` ran the copy on the same card with nothing changed from
outside (torch {torch}): "proved" means that it fits there and needs the bytes that were promised, allocated and
reserved. {proved} of {count} are proved.{others}

| script | card | as it is | change | with it | gradients | more computation | proved |
|---|---|---|---|---|---|---|---|
{rows}

Sizes are what is used of the card at most, the CUDA context included, in GiB.
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
        more += f"{', ' if more else ''}{_gib(row.host_bytes)} GiB to the host and back"
    name = " ".join([row.name, *row.arguments])
    cells = (
        name,
        f"{row.gpu} ({_gib(row.total_bytes)})",
        _gib(row.before_bytes),
        row.change,
        _gib(row.after_bytes),
        row.gradients,
        more,
        "yes" if row.is_proved else f"**no**: {row.problem or 'other bytes'}",
    )
    return f"| {' | '.join(cells)} |"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f}"
