"""Find out from an error which file, model or data set is missing."""

import errno
import os
import traceback
from collections.abc import Iterator
from typing import Any, Final

from ullage.base.errors import quoted
from ullage.predicting.made_up.standing_in import HINT

_OTHER: Final = frozenset({errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS})
_NAMES: Final = ("pretrained_model_name_or_path", "pretrained_model_name", "model_name_or_path", "name", "model_name")


_given: set[str] = set()


def remember_given(options: set[str]) -> None:
    """Remember which options were given, of "--random-weights" and "--made-up-data". Advice does not name them."""
    _given.update(options)


def is_not_there(error: BaseException) -> bool:
    """Return whether the error means that a file is missing or that the network is unavailable."""
    if isinstance(error, AttributeError):  # transformers 4.57 without a network: a lookup of a file returned None
        return str(error) == "'NoneType' object has no attribute 'endswith'"
    return isinstance(error, OSError) and error.errno not in _OTHER


def is_gated(error: BaseException) -> bool:
    """Return whether the error is about a repository that needs its owner's permission. Checked with huggingface_hub
    0.36.
    """
    return any(kind.__name__ == "GatedRepoError" for each in _chain(error) for kind in type(each).__mro__)


def _gate(path: str) -> str:
    where = quoted(f"https://huggingface.co/{path}")
    return f"gated: request access at {where}, then log in with `hf auth login` or set HF_TOKEN"


def hint_of(error: BaseException) -> str:
    """Return advice for the error that ended a script, or an empty text.

    If a file, model or data set is missing, the advice names the option that generates it.
    """
    for each in _chain(error):
        if text := getattr(each, HINT, ""):
            return str(text)
    for each in _chain(error):
        if isinstance(each, (OSError, RuntimeError, AttributeError, KeyError)) and (text := _text(each)):
            return text
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


# The stack frames of the error show the name of the model or data set that the script was loading.
def _text(error: BaseException) -> str:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if text := _text_of_call(module, frame.f_code.co_name, frame.f_locals, error):
            return text
    return ""


def _text_of_call(module: str, function: str, values: dict[str, Any], error: BaseException) -> str:
    package = module.partition(".")[0]
    if package == "datasets" and function in ("load_dataset", "load_from_disk") and is_not_there(error):
        name = values.get("path", values.get("dataset_path"))
        why = f"is {_gate('datasets/' + str(name))}" if is_gated(error) else "is not on this machine"
        return f"the data set {quoted(name)} {why}" + _advice("--made-up-data text:length=2048,rows=64 generates rows")
    if package == "torchvision" and function == "__init__" and ".datasets" in module:
        return f"the images of {quoted(values.get('root'))} are not on this machine" + _advice(
            "--made-up-data image:224 generates images",
            given="--made-up-data image:224 generates images for ImageFolder, ImageNet, CIFAR, MNIST, PASCAL VOC and "
            "COCO alone",
        )
    if package == "datasets" and module.endswith("iterable_dataset") and isinstance(error, KeyError):
        return _advice(
            "", given=f"--made-up-data columns={error.args[0]}:text,label:int:2 names the columns of streamed rows"
        ).removeprefix("; ")
    if not is_not_there(error):
        return ""
    if package in ("transformers", "diffusers", "sentence_transformers", "timm") and "from_pretrained" in function:
        name = next((values[each] for each in _NAMES if values.get(each) is not None), None)
        if isinstance(name, (str, os.PathLike)):
            why = f"are {_gate(str(name))}" if is_gated(error) else "are not on this machine"
            return f"{_what(module)} of {quoted(name)} {why}" + _advice(
                "--random-weights generates them from the configuration",
                given="ullage could not generate them from the configuration",
            )
    initial = "with --random-weights the model keeps its initial random weights"
    if module == "torch.serialization" and function == "load" and isinstance(values.get("f"), (str, os.PathLike)):
        return f"the file {quoted(values['f'])} does not exist" + _advice(initial)
    if (module, function) == ("torch.hub", "load_state_dict_from_url") or (module, function) == (
        "safetensors.torch",
        "load_file",
    ):
        name = values.get("url", values.get("filename"))
        return f"the weights {quoted(name)} are not on this machine" + _advice(initial)
    return ""


# Advice does not name an option that was given.
def _advice(text: str, *, given: str = "") -> str:
    is_given = any(option in (text or given) for option in _given)
    found = given if is_given else text
    return f"; {found}" if found else ""


def _what(module: str) -> str:
    if "tokenization" in module:
        return "the files of the tokenizer"
    if "process" in module or "feature_extraction" in module:
        return "the files of the processor"
    return "the weights"
