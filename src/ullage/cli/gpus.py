"""`ullage gpus`: list the cards that can be emulated."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from ullage._units import text_of_bytes


def gpus(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the source of every figure.")] = False,
) -> None:
    """List the cards that --gpu knows, with their memory as the driver reports it."""
    from ullage.gpus import all_gpus

    cards = all_gpus()
    if as_json:
        print(
            json.dumps(
                [{**asdict(card), "assumed": sorted(card.assumed), "sources": dict(card.sources)} for card in cards],
                indent=1,
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "card",
        "memory",
        "or, elsewhere",
        "architecture",
        "SMs",
        "assumed",
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    for card in cards:
        table.add_row(
            card.short_name,
            text_of_bytes(card.total_memory_bytes),
            _spread([n_bytes for n_bytes, _ in card.other_totals]),
            card.architecture,
            str(card.sm_count),
            ", ".join(sorted(name.removesuffix("_bytes").replace("_", " ") for name in card.assumed)),
            style=None,
        )
    Console(highlight=False).print(table)


def _spread(totals: list[int]) -> str:
    """Return the totals that other drivers leave of a card: one, or the least and the most."""
    ends = sorted({text_of_bytes(min(totals)), text_of_bytes(max(totals))}) if totals else []
    return " to ".join(sorted(ends, key=lambda end: float(end.split()[0])))
