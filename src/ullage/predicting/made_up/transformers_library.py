"""Generate a checkpoint if the weights of a transformers model are missing."""

# The library's `from_pretrained` loads the checkpoint, so that it allocates (by device_map, data type, quantization)
# what it would allocate for the real checkpoint. The library's `save_pretrained` decides the contents of the
# checkpoint, for a model on the meta device, which takes no memory. A missing image or audio processor gets the
# defaults of its class, in the model's input size.

import copy
import json
import os
from collections.abc import Callable
from typing import Any, Final

from ullage.base.errors import quoted
from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.repository import CONFIG_NAME, Config, MadeUpRepositories, MadeUpRepository
from ullage.predicting.made_up.sparse_file import saved_as_holes
from ullage.predicting.made_up.standing_in import around, stand_in, when_imported, with_hint

OF_THE_HUB: Final = (
    *("revision", "token", "use_auth_token", "local_files_only", "force_download", "cache_dir", "variant"),
)
"""The arguments of `from_pretrained` that say where to load from."""
_PROCESSORS: Final = (
    ("transformers.image_processing_base", "ImageProcessingMixin.get_image_processor_dict"),
    ("transformers.feature_extraction_utils", "FeatureExtractionMixin.get_feature_extractor_dict"),
    ("transformers.processing_utils", "ProcessorMixin.get_processor_dict"),
)


def install(repositories: MadeUpRepositories) -> None:
    """Generate missing models when the script uses transformers."""
    configurations = _Configurations(repositories)

    def watch(module: Any) -> None:
        names = ("PretrainedConfig", "PreTrainedConfig")  # the older name of the class first
        kind = next(getattr(module, name) for name in names if hasattr(module, name))
        around(kind, "get_config_dict", configurations)

    when_imported("transformers.configuration_utils", watch)
    stand_in("transformers.modeling_utils", "PreTrainedModel.from_pretrained", _Models(repositories, configurations))

    def load(original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        is_of_pictures = "image" in original.__name__
        try:
            found = original(cls, name, *arguments, **keywords)
            if found[0] or not is_of_pictures:
                return found
        except OSError as error:
            if not is_not_there(error):
                raise
        made = repositories.repository(str(name), subfolder=keywords.get("subfolder") or "")
        if made is not None and "processor" not in made.has and is_of_pictures:
            made.has.add("processor")
            repositories.note(f"generated: the processor of {name}, with the defaults of its class")
        return (_sizes_of(made.config) if made is not None and is_of_pictures else {}), {}

    for module, path in _PROCESSORS:
        stand_in(module, path, load)


# Every class of transformers loads its configuration with `PretrainedConfig.get_config_dict`.
class _Configurations:
    def __init__(self, repositories: MadeUpRepositories) -> None:
        self._repositories = repositories
        self.original: Callable[..., Any] | None = None

    def __call__(self, original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        self.original = original
        try:
            found = original(cls, name, *arguments, **keywords)
            if found[0]:
                return found
            error: BaseException | None = None
        except OSError as raised:
            if not is_not_there(raised):
                raise
            error = raised
        made = self._repositories.repository(str(name), subfolder=keywords.get("subfolder") or "")
        if made is None:
            if error is None:
                return found
            raise with_hint(error, self._repositories.unknown_text(str(name), "the weights"))
        keywords.pop("subfolder", None)
        return original(cls, made.path, *arguments, **keywords)

    def own(self, cls: Any, name: str, subfolder: str, *, is_here: bool) -> Config | None:
        if self.original is None:
            return None
        try:
            config, _ = self.original(cls, name, local_files_only=is_here, subfolder=subfolder)
        except (OSError, ValueError):
            return None
        config = {key: value for key, value in (config or {}).items() if not key.startswith("_")}
        return config or None


class _Models:
    def __init__(self, repositories: MadeUpRepositories, configurations: _Configurations) -> None:
        self._repositories = repositories
        self._configurations = configurations

    # No large file is downloaded.
    def __call__(self, original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        if name is None:
            return original(cls, name, *arguments, **keywords)
        try:
            return original(cls, name, *arguments, **{**keywords, "local_files_only": True})
        except (OSError, AttributeError) as error:
            if not is_not_there(error) or has_weights(str(name)):
                raise
            made = self._made(cls, str(name), keywords)
            if made is None:
                raise with_hint(error, self._repositories.unknown_text(str(name), "the weights")) from error
            if "quantization_config" in made.config:
                raise with_hint(
                    error,
                    f"the weights of {quoted(name)} are quantized in the repository, and quantized weights cannot be "
                    "generated; name the original model, and quantize it while loading",
                ) from error
        for word in OF_THE_HUB:
            keywords.pop(word, None)
        if keywords.get("use_safetensors") is False:
            del keywords["use_safetensors"]
        keywords.pop("subfolder", None)
        loaded = original(cls, made.path, *arguments, **keywords)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.name_or_path = model.config._name_or_path = str(name)
        return loaded

    def _made(self, cls: Any, name: str, keywords: dict[str, Any]) -> MadeUpRepository | None:
        given: Any = keywords.get("config")
        subfolder = keywords.get("subfolder") or ""
        config_class = type(given) if hasattr(given, "to_dict") else cls.config_class
        own = self._configurations.own(config_class, name, subfolder, is_here=True)
        made = self._repositories.repository(name, own, subfolder=subfolder)
        if made is None and (own := self._configurations.own(config_class, name, subfolder, is_here=False)) is not None:
            made = self._repositories.repository(name, own, subfolder=subfolder)
        if made is None and hasattr(given, "to_dict"):
            made = self._repositories.repository(name, given.to_dict(), subfolder=subfolder)
        if made is not None and "weights" not in made.has and "quantization_config" not in made.config:
            parameters, architecture = write_checkpoint(made, cls)
            made.has.add("weights")
            self._repositories.note(
                f"generated: the weights of {name} ({architecture}, {parameters:,} parameters), from {made.source}"
            )
        return made


def write_checkpoint(made: MadeUpRepository, cls: Any) -> tuple[int, str]:
    """Write a checkpoint for a model's configuration. Return the number of parameters and the model's class name."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(made.path)
    architectures = getattr(config, "architectures", None) or [""]
    model_class = getattr(transformers, architectures[0], None) or _concrete(cls, config)
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    torch.set_default_dtype(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    try:
        with torch.device("meta"):
            model = model_class(copy.deepcopy(config))
    finally:
        torch.set_default_dtype(before)
        torch.set_rng_state(state)
    parameters = sum(each.numel() for each in model.parameters())
    _take_buffers_for_parameters(model)
    from transformers import modeling_utils

    with saved_as_holes(modeling_utils, "safe_save_file", made.folder):
        model.save_pretrained(made.path)
    made.write(CONFIG_NAME, json.dumps({"architectures": [model_class.__name__], **made.config}))
    return parameters, model_class.__name__


def _concrete(cls: Any, config: Any) -> Any:
    import transformers

    mapping: Any = transformers.MODEL_MAPPING
    return cls if cls is not transformers.PreTrainedModel else mapping[type(config)]


# On the meta device, `save_pretrained` cannot find buffers by identity, so it finds them by name.
def _take_buffers_for_parameters(model: Any) -> None:
    find = model.get_parameter

    def get_parameter(name: str) -> Any:
        try:
            return find(name)
        except AttributeError:
            return model.get_buffer(name)

    model.get_parameter = get_parameter


def has_weights(name: str) -> bool:
    """Return whether a folder contains files with weights."""
    if not os.path.isdir(name):
        return False
    return any(each.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf")) for each in os.listdir(name))


def _sizes_of(config: Config) -> Config:
    vision = config.get("vision_config")
    size = config.get("image_size", vision.get("image_size") if isinstance(vision, dict) else None)
    if not isinstance(size, int):
        return {}
    return {"size": {"height": size, "width": size}, "crop_size": {"height": size, "width": size}}
