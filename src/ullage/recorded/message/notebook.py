"""Extracts the printed output from a saved Jupyter notebook, which is a JSON file."""

import json
import re
from typing import Any, Final

from ullage.base.foreign_files import is_far_larger_in_memory

_BEGINNING: Final = re.compile(r'\s{0,40}\{\s{0,40}"(?:cells|metadata|nbformat)"\s{0,4}:')


def is_notebook(beginning: str) -> bool:
    """Return whether a text begins like a Jupyter notebook file."""
    return _BEGINNING.match(beginning) is not None


def printed_by(content: str) -> str | None:
    """Return the printed output and the errors of a Jupyter notebook. Return None if the text is not a complete
    notebook.
    """
    if is_far_larger_in_memory(content):
        return None
    try:
        cells = json.loads(content)["cells"]
        return "\n".join(_text_of(output) for cell in cells for output in cell.get("outputs", ()))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _text_of(output: dict[str, Any]) -> str:
    if output.get("output_type") == "error":
        return "\n".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}"
    found = output.get("text", output.get("data", {}).get("text/plain", ""))
    return "".join(found)
