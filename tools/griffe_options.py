"""Show the options of a function, which it has from a list (`ullage.base.option`), on the page of the API.

The site's generator reads source without running it, and sees `**options` there. This replaces that by the list.
"""

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import ullage.options as lists
from ullage.base.option import documented, options_of


class ListedOptions(griffe.Extension):
    """Replace `**options` of every function that is decorated with `takes`, and add the options to its docstring."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Look at one function."""
        for decorator in func.decorators:
            call = ast.parse(str(decorator.value), mode="eval").body
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "takes":
                assert isinstance(call.args[0], ast.Name)
                other_defaults = {each.arg: ast.unparse(each.value) for each in call.keywords}
                _list(func, getattr(lists, call.args[0].id), other_defaults)


def _list(func: griffe.Function, listing: type, other_defaults: dict[str | None, str]) -> None:
    own = [each for each in func.parameters if each.kind is not griffe.ParameterKind.var_keyword]
    options = [
        griffe.Parameter(
            name,
            kind=griffe.ParameterKind.keyword_only,
            annotation=inspect.formatannotation(each.type),
            default=None if each.is_required else other_defaults.get(name, repr(each.option.default)),
        )
        for name, each in options_of(listing).items()
    ]
    func.parameters = griffe.Parameters(*own, *options)
    if func.docstring is not None:
        func.docstring.value = documented(inspect.cleandoc(func.docstring.value), listing)
