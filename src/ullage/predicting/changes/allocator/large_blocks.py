"""Large blocks that are not split: what a large tensor leaves is whole for the next one."""

from typing import Final

from ullage.predicting.changes.allocator.allocator_setting import recipe_of
from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients

CHANGE: Final = Change(
    key="max_split_size_mb",
    name="no split of large blocks",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation="the allocator does not cut small requests out of large free blocks, so that these stay whole",
    excludes=frozenset({"expandable_segments"}),
    settings_for=lambda facts: Applicable(settings=("128",)),
    alloc_conf=lambda setting: f"max_split_size_mb:{setting}",
    recipe_for=lambda facts, setting: recipe_of(f"max_split_size_mb:{setting}"),
)
