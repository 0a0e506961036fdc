"""Generate Diffusers models, schedulers and pipelines from their configurations if files are missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.repository import CONFIG_NAME, MadeUpRepositories
from ullage.predicting.made_up.sparse_file import saved_as_holes
from ullage.predicting.made_up.standing_in import stand_in, with_hint
from ullage.predicting.made_up.transformers_library import OF_THE_HUB, has_weights

_PIPELINE: Final = "model_index.json"


def install(repositories: MadeUpRepositories) -> None:
    """Generate missing models when the script uses diffusers."""
    maker = _MadeUpDiffusers(repositories)
    stand_in("diffusers.configuration_utils", "ConfigMixin.load_config", maker.config)
    stand_in("diffusers.models.modeling_utils", "ModelMixin.from_pretrained", maker.model)
    stand_in("diffusers.pipelines.pipeline_utils", "DiffusionPipeline.from_pretrained", maker.pipeline)


class _MadeUpDiffusers:
    def __init__(self, repositories: MadeUpRepositories) -> None:
        self._repositories = repositories

    def config(self, original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return original(cls, name, *arguments, **keywords)
        except OSError as error:
            if cls.config_name == _PIPELINE or not is_not_there(error):
                raise
            subfolder = keywords.pop("subfolder", None) or ""
            made = self._repositories.repository(str(name), subfolder=subfolder, file=cls.config_name)
            if made is None and cls.config_name != CONFIG_NAME:
                self._repositories.note(f"generated: {cls.__name__} of {name}, with the defaults of its class")
                made = self._repositories.repository(str(name), {}, subfolder=subfolder, file=cls.config_name)
            if made is None:
                raise with_hint(error, self._repositories.unknown_text(str(name), "the weights")) from error
        return original(cls, made.path, *arguments, **keywords)

    # A generated checkpoint is loaded if diffusers does not find the model's checkpoint on this machine.
    def model(self, original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        subfolder = keywords.get("subfolder") or ""
        try:
            return original(cls, name, *arguments, **{**keywords, "local_files_only": True})
        except OSError as error:
            if not is_not_there(error) or has_weights(str(Path(name) / subfolder)):
                raise
            made = self._repositories.repository(str(name), subfolder=subfolder)
            if made is None:
                raise with_hint(error, self._repositories.unknown_text(str(name), "the weights")) from error
        if "weights" not in made.has:
            made.has.add("weights")
            parameters = _write_checkpoint(cls, made.path, made.folder)
            what = f"{name} {subfolder}".rstrip()
            self._repositories.note(
                f"generated: the weights of {what} ({cls.__name__}, {parameters:,} parameters), from {made.source}"
            )
        for word in (*OF_THE_HUB, "subfolder", "use_safetensors"):
            keywords.pop(word, None)
        return original(cls, made.path, *arguments, **keywords)

    def pipeline(self, original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return original(cls, name, *arguments, **{**keywords, "local_files_only": True})
        except (OSError, ValueError) as error:
            given = self._repositories.choice.config
            if given is None or not (Path(given) / _PIPELINE).is_file():
                text = (
                    f"the pipeline {str(name)!r} cannot be generated without its {_PIPELINE} and the configurations of "
                    "its parts; put these files into a folder, with the same paths as in the repository, and give "
                    "--config FOLDER"
                )
                raise with_hint(error, text) from error
        for word in OF_THE_HUB:
            keywords.pop(word, None)
        return original(cls, given, *arguments, **keywords)


def _write_checkpoint(cls: Any, path: str, folder: Any) -> int:
    import safetensors.torch
    import torch

    state = torch.get_rng_state()
    with torch.device("meta"):
        model = cls.from_config(cls.load_config(path))
    torch.set_rng_state(state)
    with saved_as_holes(safetensors.torch, "save_file", folder):
        model.save_pretrained(path)
    return sum(each.numel() for each in model.parameters())
