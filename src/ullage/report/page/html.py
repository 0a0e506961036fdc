"""Draw a report as one HTML page that needs no network.

Our own scripts draw blocks over time on a canvas, because general charting libraries need seconds for 10^5 rectangles.
The page contains the blocks as compressed arrays, about 1 MB for a million events. If that is too large, the smallest
blocks are replaced by their sum (`slim`).

plotly.js (4.8 MB) draws charts with few points, such as curves and trials. Pages without these charts do not contain
it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ullage.base.secrets import hidden_data
from ullage.base.units import text_of_bytes
from ullage.report.blocks import BlockHistory
from ullage.report.foreign_names import without_control_characters
from ullage.report.page.slim import packed_within
from ullage.report.page.tree import tree_of
from ullage.report.report import Bars, Curve, Icicle, Picture, Report, Section, Stack

_ROLES: Final = (
    *("parameters", "gradients", "optimizer state", "activations"),
    *("temporaries", "inputs", "workspaces", "buffers"),
)
_STATES: Final = {
    "allocated": "allocated",
    "cached": "cached",
    "cached by PyTorch": "cached",
    "freed, pending": "pending",
    "CUDA context": "context",
    "context, libraries": "context",
    "not attributed": "context",
    "outside PyTorch's allocator": "outside",
    "other processes": "processes",
    "rounding": "other",
    "unknown": "other",
}
_LINES: Final = 7
# in loading order
_BLOCKS: Final = (
    "columns",
    "lives",
    "strata",
    "stage",
    "looks",
    "words",
    "segments",
    "panel",
    "overlay",
    "hand",
    "explorer",
)


def draw_page(report: Report) -> str:
    """Return a report as an HTML page. Secrets are hidden, because users show pages to others."""
    report = hidden_data(without_control_characters(report))
    first, rest = _in_order((*report.sections, *report.details))
    colours = colours_of(report)
    plotted = [one for one in report.pictures if not isinstance(one, BlockHistory | Icicle | Bars)]
    blocks = [one for one in report.pictures if isinstance(one, BlockHistory)]
    data = {"pictures": [{"kind": _kind(one), **asdict(one)} for one in plotted], "colours": colours}
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            first=first,
            rest=rest,
            colours=colours,
            pictures=[(_kind(one), one, _prepared(one)) for one in report.pictures],
            data=_embedded(data),
            style=_own("page.css") + (_own("blocks.css") if blocks else ""),
            scripts=[_own(f"{name}.js") for name in ("base", *(_BLOCKS if blocks else ()))],
            plotly=Markup(_plotly()) if plotted else None,
            plots=_own("plots.js") if plotted else None,
        )
    )


def _prepared(picture: Picture) -> Any:
    if isinstance(picture, BlockHistory):
        return packed_within(picture)
    return tree_of(picture) if isinstance(picture, Icicle) else None


def _own(name: str) -> Markup:
    return Markup((files(__package__) / name).read_text(encoding="utf-8"))


Named = list[tuple[str, Section]]


def _in_order(sections: Sequence[Section]) -> tuple[Named, Named]:
    named = [(_kind(one), one) for one in sections if not (isinstance(one, Curve) and not one.remark)]
    meters = [one for one in named if one[0] == "meter"]
    others = [one for one in named if one[0] != "meter"]
    has_answer = bool(others) and others[0][0] == "table"
    return [*meters, *others[:has_answer]], others[has_answer:]


def _kind(thing: Section | Picture) -> str:
    return type(thing).__name__.lower()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = text_of_bytes
    return environment


# A file name may contain `</script>`.
def _embedded(data: Any) -> Markup:
    text = json.dumps(data, separators=(",", ":"), default=lambda tone: tone.value)
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _plotly() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def colours_of(report: Report) -> dict[str, str]:
    """Map each label to a colour name in page.css, so that a colour has one meaning on the whole page."""
    found = {**_STATES, **{role: f"c{index}" for index, role in enumerate(_ROLES)}}
    named = [label for label in dict.fromkeys(_labels(report)) if label not in found]
    return found | {label: f"l{index}" for index, label in enumerate(named[:_LINES])}


def _labels(report: Report) -> Iterator[str]:
    for picture in report.pictures:
        if isinstance(picture, BlockHistory) and picture.facets:
            yield from picture.facets[0].labels[:_LINES]
        elif isinstance(picture, Stack):
            yield from (label for label, _ in picture.series)
