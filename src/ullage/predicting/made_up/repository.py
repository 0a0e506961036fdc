"""Generate a model folder in place of a model that is not on this machine.

The configuration comes from the model's folder, the library's cache, `config=`, or ullage's own `configs/` folder.
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
CONFIGS: Final = Path(__file__).parent / "configs"
"""The folder with ullage's own configurations of models, and the pieces of words of generated tokenizers."""
_MOST_BYTES: Final = 16 << 20
Config = dict[str, Any]


@dataclass(slots=True)
class MadeUpRepository:
    """A generated model folder. Libraries load from this folder in place of the missing model."""

    folder: OwnFolder
    name: str
    """The name of the model that the script loads."""
    config: Config
    source: str
    """A text for notes that says where the model's configuration comes from."""
    has: set[str] = field(default_factory=set)
    """The kinds of files in the generated folder, such as "weights" or "tokenizer"."""

    @property
    def path(self) -> str:
        """The path of the folder."""
        return str(self.folder.path)

    def write(self, name: str, content: str) -> None:
        """Write a text file into the folder atomically, in place of any existing file."""
        self.folder.write_whole(name, content.encode())


class MadeUpRepositories:
    """The generated model folders of this process, and the options for generated data."""

    def __init__(self, choice: MadeUpChoice, note: Callable[[str], None]) -> None:
        self.choice = choice
        self.note = note
        """A function that receives a message about each model, tokenizer or data set that ullage generates."""
        self.last_tokenizer: Any = None
        """The last tokenizer that the script loaded. It counts the tokens of generated texts."""
        self._home: OwnFolder | None = None
        self._made: dict[str, MadeUpRepository] = {}

    def repository(
        self, name: str, own_config: Config | None = None, *, subfolder: str = "", file: str = CONFIG_NAME
    ) -> MadeUpRepository | None:
        """Return the generated folder for a model, or None if the model's configuration is unknown.

        Args:
            name: the name that the script loads: a repository's name or a path.
            own_config: the configuration that the library has found in a folder or in its cache.
            subfolder: the subfolder of the repository that is loaded.
            file: the name of the configuration file.
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
        """The folder that contains all generated model folders of this run."""
        if self._home is None:
            assert self.choice.folder is not None, "the process that starts the script creates a folder"
            self._home = OwnFolder.open(Path(self.choice.folder))
        return self._home

    def config_of(self, name: str, subfolder: str = "", file: str = CONFIG_NAME) -> tuple[Config, str] | None:
        """Return the configuration of a model and a text that says where it comes from, or None if unknown."""
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
        """Return the error message for a model whose configuration is unknown. It lists the places that were
        searched.
        """
        given = f"{self.choice.config}, " if self.choice.config is not None else ""
        return (
            f"{what} of {quoted(name)} cannot be generated without a configuration. It was not found in the model's "
            f"folder, the library's cache, {given}or among ullage's own configurations. Put the model's config.json "
            "into a folder and give --config FOLDER"
        )


def read_config(path: Path) -> Config | None:
    """Return the contents of a config.json file, or None if the file is missing or invalid."""
    try:
        config = json.loads(read_regular(path, most_bytes=_MOST_BYTES))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def shipped_config(name: str, subfolder: str = "") -> Config | None:
    """Return a model's configuration from the configurations that are part of ullage.

    The model is found by its name without the organisation, so copies of a model have the same configuration.
    """
    file = _shipped().get(_key(name, subfolder))
    return read_config(CONFIGS / file) if file is not None else None


@cache
def _shipped() -> dict[str, str]:
    index = read_config(CONFIGS / "index.json") or {}
    return {_key(name, each.get("subfolder", "")): each["file"] for each in index["models"] for name in each["names"]}


def _key(name: str, subfolder: str) -> str:
    return f"{os.path.basename(name.rstrip('/'))}/{subfolder}".lower()


def _file_name(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-." else "-" for sign in name)[-100:].strip(".-") or "model"
