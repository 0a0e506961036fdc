"""The command `ullage gpus`: list the GPUs that can be emulated."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer

from ullage.base.units import text_of_bytes

_GAP: Final = 2
_LEAST_LAST_COLUMN: Final = 16


def gpus(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON that includes the source of every figure.")
    ] = False,
) -> None:
    """List the GPUs that --gpu accepts by name, with the memory that the driver reports for each."""
    from ullage.gpu.gpus import all_gpus

    cards = all_gpus()
    if as_json:
        print(
            json.dumps(
                [{**asdict(card), "assumed": sorted(card.assumed), "sources": dict(card.sources)} for card in cards],
                indent=1,
            )
        )
        return
    rows = [
        (
            card.short_name,
            text_of_bytes(card.total_memory_bytes),
            _spread([n_bytes for n_bytes, _ in card.other_totals]),
            card.architecture,
            str(card.sm_count),
            ", ".join(sorted(name.removesuffix("_bytes").replace("_", " ") for name in card.assumed)),
        )
        for card in cards
    ]
    _print_table(("GPU", "memory", "other drivers", "architecture", "SMs", "assumed"), rows)


# rich is not used, because its import would take half of the time of this command.
def _print_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    indent = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    last = max(shutil.get_terminal_size().columns - indent, _LEAST_LAST_COLUMN)
    lines = []
    for row in (heads, *rows):
        before = "".join(cell.ljust(width + _GAP) for cell, width in zip(row, widths, strict=False))[:indent]
        wrapped = textwrap.wrap(row[-1], last) or [""]
        lines += [(before + wrapped[0]).rstrip(), *(" " * indent + line for line in wrapped[1:])]
    typer.echo("\n".join([typer.style(lines[0], bold=True), *lines[1:]]))


def _spread(totals: list[int]) -> str:
    if not totals:
        return ""
    least, most = text_of_bytes(min(totals)), text_of_bytes(max(totals))
    return least if least == most else f"{least.removesuffix(' GiB')} to {most}"
