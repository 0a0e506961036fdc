"""The columns of well-known data sets of the Hugging Face hub."""

from functools import cache

from ullage.predicting.made_up.columns import DataColumn
from ullage.predicting.made_up.repository import CONFIGS, read_config


def known_columns(name: str, configuration: str | None) -> list[DataColumn] | None:
    """Return the columns of a well-known data set of the Hugging Face hub, or None for other data sets.

    Args:
        name: the name of the data set, with or without the name of its owner.
        configuration: the name of its configuration, such as "mrpc".
    """
    key = name.rstrip("/").rpartition("/")[2].lower()
    found = _known()
    text = found.get(f"{key}/{configuration}".lower()) or found.get(key)
    return None if text is None else [DataColumn.parse(part) for part in text.split(",")]


@cache
def _known() -> dict[str, str]:
    found = read_config(CONFIGS / "data_sets.json")
    assert found is not None, "the file is a part of this package"
    return {name: columns for names, columns in found["columns"].items() for name in names.split()}
