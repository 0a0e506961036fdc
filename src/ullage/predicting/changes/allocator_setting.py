"""Settings of PyTorch's allocator that can save memory, such as expandable segments."""

from typing import Final

from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients
from ullage.predicting.editing.edit import Recipe


def _change(option: str, value: str, *, name: str, explanation: str, excludes: str) -> Change:

    def recipe_for(facts: object, setting: str) -> Recipe:
        line = f"export PYTORCH_CUDA_ALLOC_CONF={option}:{setting}"
        return Recipe(snippet=line, environment=line)

    return Change(
        key=option,
        name=name,
        cost=ChangeCost.NOTHING,
        gradients=Gradients.SAME,
        explanation=explanation,
        excludes=frozenset({excludes}),
        settings_for=lambda facts: Applicable(settings=(value,)),
        alloc_conf=lambda setting: f"{option}:{setting}",
        recipe_for=recipe_for,
    )


EXPANDABLE_SEGMENTS: Final = _change(
    "expandable_segments",
    "True",
    name="expandable segments",
    explanation="the allocator maps memory into expandable segments, in which free memory can be joined",
    excludes="max_split_size_mb",
)
LARGE_BLOCKS: Final = _change(
    "max_split_size_mb",
    "128",
    name="no split of large blocks",
    explanation="the allocator does not serve small requests from large free blocks, so that large blocks stay whole",
    excludes="expandable_segments",
)
