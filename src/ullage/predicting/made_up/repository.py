"""A folder in the place of a model's repository that is not here: made when it is first asked for.

Its configuration comes from the model's own folder or the library's cache, from `--config`, or from `configs/`, which
has those of common models.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from ullage.base.errors import quoted
from ullage.base.foreign_files import read_regular
from ullage.base.own_files import OwnFolder
from ullage.predicting.made_up.choice import MadeUpChoice

CONFIG_NAME: Final = "config.json"
_CONFIGS: Final = Path(__file__).parent / "configs"
_MOST_BYTES: Final = 16 << 20
Config = dict[str, Any]


@dataclass(slots=True)
class MadeUpRepository:
    """One folder: what libraries are given instead of the name."""

    folder: OwnFolder
    name: str
    """The name that the script asks for."""
    config: Config
    source: str
    """Words for where the configuration comes from."""
    has: set[str] = field(default_factory=set)
    """The kinds of file that are there: "weights", "tokenizer", ..."""

    @property
    def path(self) -> str:
        """The path of the folder."""
        return str(self.folder.path)

    def write(self, name: str, content: str) -> None:
        """Write a file of text whole, in the place of one that is there."""
        self.folder.write_whole(name, content.encode())


class MadeUpRepositories:
    """What is made up in this process: the choice, whom to tell, and the folders by name."""

    def __init__(self, choice: MadeUpChoice, note: Callable[[str], None]) -> None:
        self.choice = choice
        self.note = note
        """Told in a sentence what was made up, once each."""
        self.last_tokenizer: Any = None
        """The tokenizer that the script has loaded last: lengths of made-up texts are counted by it."""
        self._home: OwnFolder | None = None
        self._made: dict[str, MadeUpRepository] = {}

    def repository(
        self, name: str, own_config: Config | None = None, *, subfolder: str = "", file: str = CONFIG_NAME
    ) -> MadeUpRepository | None:
        """Return the folder that stands for a name; None where no configuration is known.

        Args:
            name: what the script asks for, a repository's name or a path.
            own_config: the configuration that the library has of it, in a folder or in its cache.
            subfolder: the folder in it that is asked for.
            file: the name of the configuration's file.
        """
        key = f"{name}/{subfolder}".rstrip("/")
        found = self._made.get(key)
        if found is None:
            given = self.config_of(name, subfolder, file) if own_config is None else (own_config, "its own config.json")
            if given is None:
                return None
            folder = self.home.make_folder(_file_name(key))
            found = self._made[key] = MadeUpRepository(folder, name, *given)
            found.write(file, json.dumps(found.config))
        return found

    @property
    def home(self) -> OwnFolder:
        """The folder of this run in which all others are."""
        if self._home is None:
            assert self.choice.folder is not None, "whoever starts the script makes a folder"
            self._home = OwnFolder.open(Path(self.choice.folder))
        return self._home

    def config_of(self, name: str, subfolder: str = "", file: str = CONFIG_NAME) -> tuple[Config, str] | None:
        """Return the configuration of a name, and where it was found."""
        for path in self._places(name, subfolder, file):
            if (config := read_config(path)) is not None:
                return config, str(path)
        if file == CONFIG_NAME and (config := shipped_config(name, subfolder)) is not None:
            return config, "ullage's own configurations"
        return None

    def _places(self, name: str, subfolder: str, file: str) -> list[Path]:
        places = [Path(name) / subfolder / file]
        if self.choice.config is not None:
            given = Path(self.choice.config)
            if given.is_dir():
                folders = (given / name.strip("/"), given / Path(name).name, given)
                places += [folder / subfolder / file for folder in folders]
            elif not subfolder:
                places.append(given)
        return places

    def unknown_text(self, name: str, what: str) -> str:
        """Say that there is no configuration to make something from, and where it was looked for."""
        given = f"{self.choice.config}, " if self.choice.config is not None else ""
        return (
            f"{what} of {quoted(name)} cannot be made up without a configuration, which was looked for in its own "
            f"folder, the library's cache, {given}and among ullage's own; put the model's config.json into a folder "
            "and give --config FOLDER"
        )


def read_config(path: Path) -> Config | None:
    """Return the content of a config.json; None where there is none."""
    try:
        config = json.loads(read_regular(path, most_bytes=_MOST_BYTES))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def shipped_config(name: str, subfolder: str = "") -> Config | None:
    """Return the configuration that comes with this package for a model's name, whoever has uploaded it."""
    file = _shipped().get(_key(name, subfolder))
    return read_config(_CONFIGS / file) if file is not None else None


@cache
def _shipped() -> dict[str, str]:
    index = read_config(_CONFIGS / "index.json") or {}
    return {_key(name, each.get("subfolder", "")): each["file"] for each in index["models"] for name in each["names"]}


def _key(name: str, subfolder: str) -> str:
    return f"{os.path.basename(name.rstrip('/'))}/{subfolder}".lower()


def _file_name(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-." else "-" for sign in name)[-100:].strip(".-") or "model"
