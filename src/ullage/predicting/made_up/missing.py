"""Whether an error says that something is not here, and what that was. It imports nothing that a script does not."""

import errno
import os
import traceback
from collections.abc import Iterator
from typing import Any, Final

from ullage.base.errors import quoted
from ullage.predicting.made_up.standing_in import HINT

_OTHER: Final = frozenset({errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS})
_NAMES: Final = ("pretrained_model_name_or_path", "pretrained_model_name", "model_name_or_path", "name", "model_name")


def is_not_there(error: BaseException) -> bool:
    """Tell whether an error of a library means that a file, a repository or the network is not there."""
    if isinstance(error, AttributeError):  # transformers 4.57 without a network: it looks at the name of no file
        return str(error) == "'NoneType' object has no attribute 'endswith'"
    return isinstance(error, OSError) and error.errno not in _OTHER


def is_gated(error: BaseException) -> bool:
    """Tell whether an error came of a repository whose owner has to be asked first (huggingface_hub 0.36)."""
    return any(kind.__name__ == "GatedRepoError" for each in _chain(error) for kind in type(each).__mro__)


def _gate(path: str) -> str:
    """Say what to do about a gated repository, by its path on the hub."""
    where = quoted(f"https://huggingface.co/{path}")
    return f"gated: ask for access at {where}, then log in with `hf auth login` or set HF_TOKEN"


def hint_of(error: BaseException) -> str:
    """Return the sentence to be said beside an error that a script ended with; "" where there is none.

    An error that came of something that is not here gets the option that makes it up.
    """
    for each in _chain(error):
        if text := getattr(each, HINT, ""):
            return str(text)
    for each in _chain(error):
        if isinstance(each, (OSError, RuntimeError, AttributeError)) and (text := _text(each)):
            return text
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _text(error: BaseException) -> str:
    """Return the sentence for what the frames of an error were about to load."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if text := _text_of_call(module, frame.f_code.co_name, frame.f_locals, error):
            return text
    return ""


def _text_of_call(module: str, function: str, values: dict[str, Any], error: BaseException) -> str:
    package = module.partition(".")[0]
    if package == "datasets" and function in ("load_dataset", "load_from_disk") and is_not_there(error):
        name = values.get("path", values.get("dataset_path"))
        why = f"is {_gate('datasets/' + str(name))}" if is_gated(error) else "is not here"
        return f"the data set {quoted(name)} {why}; --made-up-data text:length=2048,rows=64 makes rows up"
    if package == "torchvision" and function == "__init__" and ".datasets" in module:
        return f"the pictures of {quoted(values.get('root'))} are not here; --made-up-data image:224 makes some up"
    if not is_not_there(error):
        return ""
    if package in ("transformers", "diffusers", "sentence_transformers", "timm") and "from_pretrained" in function:
        name = next((values[each] for each in _NAMES if values.get(each) is not None), None)
        if isinstance(name, (str, os.PathLike)):
            why = f"are {_gate(str(name))}" if is_gated(error) else "are not here"
            return f"{_what(module)} of {quoted(name)} {why}; --random-weights makes them up from the configuration"
    if module == "torch.serialization" and function == "load" and isinstance(values.get("f"), (str, os.PathLike)):
        return f"the file {quoted(values['f'])} is not here; --random-weights goes on with a model's own fresh weights"
    if (module, function) == ("torch.hub", "load_state_dict_from_url") or (module, function) == (
        "safetensors.torch",
        "load_file",
    ):
        name = values.get("url", values.get("filename"))
        return f"the weights {quoted(name)} are not here; --random-weights goes on with a model's own fresh ones"
    return ""


def _what(module: str) -> str:
    if "tokenization" in module:
        return "the files of the tokenizer"
    if "process" in module or "feature_extraction" in module:
        return "the files of the processor"
    return "the weights"
