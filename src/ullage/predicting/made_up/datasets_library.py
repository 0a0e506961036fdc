"""Generate rows if the library `datasets` does not find a data set."""

from collections.abc import Callable
from typing import Any, Final

from ullage.predicting.made_up.choice import MadeUpData
from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.repository import MadeUpRepositories
from ullage.predicting.made_up.rows import lengths_of, text_rows
from ullage.predicting.made_up.standing_in import around, when_imported

_SPLITS: Final = ("train", "validation", "test")


def install(repositories: MadeUpRepositories, data: MadeUpData) -> None:
    """Generate missing data sets when the script uses the library `datasets`."""
    maker = _MadeUpDatasets(repositories, data)

    def watch(module: Any) -> None:
        for name in ("load_dataset", "load_from_disk"):
            around(module, name, maker.load)
            setattr(module.load, name, getattr(module, name))

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
        name = str(arguments[0] if arguments else keywords.get("path", keywords.get("dataset_path")))
        if name not in self._noted:
            self._noted.add(name)
            self._repositories.note(f"generated: the data set {name}: {self._described()}")
        return self._made(keywords.get("split"), streams=bool(keywords.get("streaming")))

    def _described(self) -> str:
        data, lengths = self._data, self._lengths()
        if data.form == "image":
            return f"{len(lengths)} images of {data.height}x{data.width}"
        unit = "tokens" if self._repositories.last_tokenizer is not None else "words (no tokenizer was loaded before)"
        least, most = min(lengths), max(lengths)
        size = str(least) if least == most else f"{least} to {most}"
        return f"{len(lengths)} rows ({data.form}) of {size} {unit}"

    def _lengths(self) -> list[int]:
        return lengths_of(self._repositories.choice, self._data)

    def _made(self, split: Any, *, streams: bool) -> Any:
        import datasets

        if self._data.form == "image":
            made = self._pictures()
        else:
            rows = text_rows(self._data, self._lengths(), self._repositories.last_tokenizer)
            made = datasets.Dataset.from_list(rows)
        one = made.to_iterable_dataset() if streams else made
        if isinstance(split, list | tuple):
            return [one for _ in split]
        if split is not None:
            return one
        kind: Any = datasets.IterableDatasetDict if streams else datasets.DatasetDict
        return _any_split(kind)(dict.fromkeys(_SPLITS, one))

    # All rows have the same image, which is encoded once.
    def _pictures(self) -> Any:
        import datasets

        from ullage.predicting.made_up.pictures import encoded

        data = self._data
        count = len(self._lengths())
        features = datasets.Features(
            {
                data.column or "image": datasets.Image(),
                "label": datasets.ClassLabel(names=[f"class_{number}" for number in range(data.classes)]),
            }
        )
        picture = {"bytes": encoded(data.width, data.height), "path": None}
        columns = {data.column or "image": [picture] * count, "label": [n % data.classes for n in range(count)]}
        return datasets.Dataset.from_dict(columns, features=features)


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
