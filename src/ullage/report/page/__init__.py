"""Draw a report as one page that needs no network, from the same object as the terminal's text.

Everything is inside the file: the style, the script, and plotly.js, which draws what can be hovered and zoomed.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ullage._units import text_of_bytes
from ullage.report.report import Curve, Picture, Report, Section


def draw_page(report: Report) -> str:
    """Return the report as HTML."""
    own = files(__package__)
    first, rest = _in_order((*report.sections, *report.details))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            first=first,
            rest=rest,
            pictures=[_kind(picture) for picture in report.pictures],
            data=_embedded([{"kind": _kind(picture), **asdict(picture)} for picture in report.pictures]),
            style=Markup((own / "page.css").read_text()),
            script=Markup((own / "page.js").read_text()),
            plotly=Markup(_plotly()) if report.pictures else None,
        )
    )


Named = list[tuple[str, Section]]


def _in_order(sections: Sequence[Section]) -> tuple[Named, Named]:
    """Return the sections before the pictures (meters and the answer's table), and those after them.

    A curve is a picture of its own, so that only its remark is left of it.
    """
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


def _embedded(data: Any) -> Markup:
    """Return JSON that is safe inside a script element: a file's name may contain `</script>`."""
    text = json.dumps(data, separators=(",", ":"), default=lambda tone: tone.value)
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _plotly() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
