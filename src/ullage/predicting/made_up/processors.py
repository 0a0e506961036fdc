"""Transformers' processors of pictures and sound whose files are not here: the defaults of their class, in its size."""

from collections.abc import Callable
from typing import Any

from ullage.predicting.made_up.missing import is_not_there
from ullage.predicting.made_up.repository import Config, MadeUpRepositories
from ullage.predicting.made_up.standing_in import stand_in

_MIXINS = (
    ("transformers.image_processing_base", "ImageProcessingMixin.get_image_processor_dict"),
    ("transformers.feature_extraction_utils", "FeatureExtractionMixin.get_feature_extractor_dict"),
    ("transformers.processing_utils", "ProcessorMixin.get_processor_dict"),
)


def install(repositories: MadeUpRepositories) -> None:
    """Be there when the script imports processors."""

    def load(original: Callable[..., Any], cls: Any, name: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            found = original(cls, name, *arguments, **keywords)
            if found[0] or "image" not in original.__name__:
                return found
        except OSError as error:
            if not is_not_there(error):
                raise
        made = repositories.repository(str(name), subfolder=keywords.get("subfolder") or "")
        is_of_pictures = "image" in original.__name__
        if made is not None and "processor" not in made.has and is_of_pictures:
            made.has.add("processor")
            repositories.note(f"made up: the processor of {name}, with the defaults of its class")
        return (sizes_of(made.config) if made is not None and is_of_pictures else {}), {}

    for module, path in _MIXINS:
        stand_in(module, path, load)


def sizes_of(config: Config) -> Config:
    """Return what a processor of pictures is told of a model's size; nothing where the model has none."""
    vision = config.get("vision_config")
    size = config.get("image_size", vision.get("image_size") if isinstance(vision, dict) else None)
    if not isinstance(size, int):
        return {}
    return {"size": {"height": size, "width": size}, "crop_size": {"height": size, "width": size}}
