"""Edited texts that run in place of files of the user's, which stay on disk as they are.

A text is compiled under its file's own name, and Python's cache of lines has it: tracebacks, `inspect` and
`torch.compile` see what runs.
"""

import base64
import json
import linecache
import os
import sys
import zlib
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from types import CodeType
from typing import Any


def packed(texts: Mapping[str, str]) -> str:
    """Return texts by path as one word, short enough for an argument or a variable of the environment."""
    if not texts:
        return ""
    return base64.b64encode(zlib.compress(json.dumps(dict(texts)).encode(), 9)).decode()


class EditedSources:
    """The texts that run in place of files, by their absolute paths."""

    def __init__(self, word: str) -> None:
        """Take what `packed` returned."""
        named: dict[str, str] = json.loads(zlib.decompress(base64.b64decode(word))) if word else {}
        self._texts = {os.path.realpath(path): text for path, text in named.items()}
        for path, text in named.items():
            for name in {path, os.path.realpath(path)}:
                # No time of change: Python then takes the lines for those of a loader, and does not look at the file.
                linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)

    def text_of(self, path: str) -> str | None:
        """Return the text that runs in place of a file; None: the file itself does."""
        return self._texts.get(os.path.realpath(path)) if self._texts else None

    def install(self) -> None:
        """Have imports load the texts, and `python SCRIPT` run them, from now on in this process."""
        if not self._texts:
            return
        get_code, get_data = SourceFileLoader.get_code, SourceFileLoader.get_data

        def edited_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            text = self.text_of(loader.path)
            if text is None:
                return get_code(loader, name)
            code: CodeType = compile(text, loader.path, "exec", dont_inherit=True)  # of the cache on disk: nothing
            return code

        def edited_data(loader: SourceFileLoader, path: str) -> bytes:
            text = self.text_of(path)
            return get_data(loader, path) if text is None else text.encode()

        setattr(SourceFileLoader, "get_code", edited_code)  # noqa: B010  mypy is right otherwise
        setattr(SourceFileLoader, "get_data", edited_data)  # noqa: B010  mypy is right otherwise
        sys.path_hooks.insert(0, self._finder_of_main)

    def _finder_of_main(self, path: str) -> Any:
        """Return a finder for a script: Python asks for one before it opens the file itself, as for a zipped program.

        Raises:
            ImportError: it is not edited.
        """
        if self.text_of(path) is None:
            raise ImportError
        return _MainFinder(path)


class _MainFinder:
    """Finds nothing but the script itself."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, target: object = None) -> ModuleSpec | None:
        """Return the script as `__main__`."""
        if name != "__main__":
            return None
        return spec_from_loader(name, _MainLoader(name, self._path), origin=self._path)


class _MainLoader(SourceFileLoader):
    """Loads the script, and has `sys.path` begin with its folder, where Python has put the script for the finder."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the edited text."""
        if sys.path[:1] == [self.path]:
            folder = os.path.dirname(os.path.realpath(self.path))
            sys.path[:1] = [] if sys.flags.safe_path else [folder]
        return super().get_code(fullname)
