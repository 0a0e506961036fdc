"""Generate rows if the library `datasets` does not find a data set."""

from collections.abc import Callable
from typing import Any, Final

from ullage.predicting.made_up.asked_columns import AskedColumns, mark
from ullage.predicting.made_up.choice import MadeUpData
from ullage.predicting.made_up.column_values import feature_of, values_of
from ullage.predicting.made_up.columns import DataColumn, column_named
from ullage.predicting.made_up.known_data_sets import known_columns
from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.repository import MadeUpRepositories
from ullage.predicting.made_up.rows import chat_rows, lengths_of
from ullage.predicting.made_up.standing_in import around, when_imported

_SPLITS: Final = ("train", "validation", "test")
_TABLES: Final = ("chat", "preference")


def install(repositories: MadeUpRepositories, data: MadeUpData) -> None:
    """Generate missing data sets when the script uses the library `datasets`."""
    maker = _MadeUpDatasets(repositories, data)

    def watch(module: Any) -> None:
        for name in ("load_dataset", "load_from_disk"):
            around(module, name, maker.load)
            setattr(module.load, name, getattr(module, name))
        AskedColumns(maker.add).install(module)

    when_imported("datasets", watch)


class _MadeUpDatasets:
    def __init__(self, repositories: MadeUpRepositories, data: MadeUpData) -> None:
        self._repositories = repositories
        self._data = data
        self._noted: set[str] = set()

    def load(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return original(*arguments, **keywords)
        except Exception as error:
            if not is_not_there(error) and not isinstance(error.__cause__ or error.__context__, OSError):
                raise
        names = [str(each) for each in arguments] or [str(keywords.get("path", keywords.get("dataset_path")))]
        configuration = keywords.get("name") or (names[1] if len(names) > 1 else None)
        made = self._made(names[0], configuration)
        return _in_splits(made, keywords.get("split"), streams=bool(keywords.get("streaming")))

    def add(self, data_set: Any, name: str) -> Any:
        """Return a generated data set with one more column, which the script has asked for."""
        import datasets

        known = [each.num_classes for each in data_set.info.features.values() if hasattr(each, "num_classes")]
        classes = known[0] if known and self._data.classes is None else self._data.class_count
        column = self._sized(column_named(name, classes=classes))
        lengths = lengths_of(self._repositories.choice, self._data)
        lengths = (lengths * -(-len(data_set) // len(lengths)))[: len(data_set)]
        values = values_of(column, lengths, self._repositories.last_tokenizer)
        more = datasets.Dataset.from_dict({name: values}, features=datasets.Features({name: feature_of(column)}))
        self._note(f"generated: the column {column}, because the script reads it")
        return datasets.concatenate_datasets([data_set.with_format(None), more], axis=1)

    def _made(self, name: str, configuration: str | None) -> Any:
        import datasets

        data = self._data
        lengths = lengths_of(self._repositories.choice, data)
        tokenizer = self._repositories.last_tokenizer
        has_length = True
        if data.form in _TABLES:
            made = datasets.Dataset.from_list(chat_rows(data, lengths, tokenizer))
            what = data.form
        else:
            columns = self._columns(name, configuration)
            made = datasets.Dataset.from_dict(
                {column.name: values_of(column, lengths, tokenizer) for column in columns},
                features=datasets.Features({column.name: feature_of(column) for column in columns}),
            )
            what = ", ".join(str(column) for column in columns)
            has_length = any(column.has_row_length for column in columns)
        full = " ".join(filter(None, (name, configuration)))
        self._note(
            f"generated: the data set {full}: {len(lengths)} rows ({what})"
            + (self._size(lengths) if has_length else "")
        )
        return mark(made)

    def _columns(self, name: str, configuration: str | None) -> list[DataColumn]:
        data = self._data
        known = None if data.column is not None or data.columns else known_columns(name, configuration)
        if data.columns:
            found = list(data.columns)
        elif known is not None:
            found = known
        elif data.form == "image":
            found = [
                DataColumn(name=data.column or "image", kind="image"),
                DataColumn(name="label", kind="int", size=data.class_count),
            ]
        else:
            found = [DataColumn(name=data.column or "text", kind="text")]
        return [self._sized(column) for column in found]

    def _sized(self, column: DataColumn) -> DataColumn:
        data = self._data
        labels = column_named(column.name, classes=data.class_count).size if column.kind == "int" else None
        return column.sized(classes=labels, height=data.height, width=data.width)

    def _size(self, lengths: list[int]) -> str:
        least, most = min(lengths), max(lengths)
        size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        unit = "tokens" if self._repositories.last_tokenizer is not None else "words (no tokenizer was loaded before)"
        return f" of {size} {unit}"

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._repositories.note(text)


def _in_splits(made: Any, split: Any, *, streams: bool) -> Any:
    import datasets

    one = made.to_iterable_dataset() if streams else made
    if isinstance(split, list | tuple):
        return [one for _ in split]
    if split is not None:
        return one
    kind: Any = datasets.IterableDatasetDict if streams else datasets.DatasetDict
    return _any_split(kind)(dict.fromkeys(_SPLITS, one))


def _any_split(kind: Any) -> Any:

    class AnySplit(kind):  # type: ignore[misc]  # of a library that is imported when the script does
        def __missing__(self, name: str) -> Any:
            self[name] = next(iter(self.values()))
            return self[name]

        def __getitem__(self, name: Any) -> Any:
            if isinstance(name, str) and name not in self:
                return self.__missing__(name)
            return super().__getitem__(name)

    AnySplit.__name__ = kind.__name__
    return AnySplit
