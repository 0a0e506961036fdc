"""Run edited source code in place of the user's files, which stay unchanged on disk.

The code is compiled under the file's own name and entered into Python's line cache. So tracebacks, `inspect` and
`torch.compile` show the code that actually runs.
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
    """Encode edited source code as one short string, for an argument or an environment variable."""
    if not texts:
        return ""
    return base64.b64encode(zlib.compress(json.dumps(dict(texts)).encode(), 9)).decode()


class EditedSources:
    """The edited source code of the user's files, by absolute path."""

    def __init__(self, word: str) -> None:
        named: dict[str, str] = json.loads(zlib.decompress(base64.b64decode(word))) if word else {}
        self._texts = {os.path.realpath(path): text for path, text in named.items()}
        for path, text in named.items():
            for name in {path, os.path.realpath(path)}:
                # Without a modification time, Python treats the lines as a loader's and does not check the file.
                linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)

    def text_of(self, path: str) -> str | None:
        """Return the edited source code of a file, or None if the file is not edited."""
        return self._texts.get(os.path.realpath(path)) if self._texts else None

    def install(self) -> None:
        """Make imports and `python SCRIPT` run the edited source code in this process."""
        if not self._texts:
            return
        get_code, get_data = SourceFileLoader.get_code, SourceFileLoader.get_data

        def edited_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            text = self.text_of(loader.path)
            if text is None:
                return get_code(loader, name)
            code: CodeType = compile(
                text, loader.path, "exec", dont_inherit=True
            )  # does not use the bytecode cache on disk
            return code

        def edited_data(loader: SourceFileLoader, path: str) -> bytes:
            text = self.text_of(path)
            return get_data(loader, path) if text is None else text.encode()

        setattr(SourceFileLoader, "get_code", edited_code)  # noqa: B010  mypy is right otherwise
        setattr(SourceFileLoader, "get_data", edited_data)  # noqa: B010  mypy is right otherwise
        sys.path_hooks.insert(0, self._finder_of_main)

    # Python asks for a finder before it opens a script, because the script could be a zipped program.
    def _finder_of_main(self, path: str) -> Any:
        if self.text_of(path) is None:
            raise ImportError
        return _MainFinder(path)


class _MainFinder:
    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, target: object = None) -> ModuleSpec | None:
        if name != "__main__":
            return None
        return spec_from_loader(name, _MainLoader(name, self._path), origin=self._path)


# Python puts the script's path first in `sys.path`; the loader replaces this path with the script's folder.
class _MainLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        if sys.path[:1] == [self.path]:
            folder = os.path.dirname(os.path.realpath(self.path))
            sys.path[:1] = [] if sys.flags.safe_path else [folder]
        return super().get_code(fullname)
