"""Expandable segments: free memory of one size can serve a request of another."""

from typing import Final

from ullage.predicting.changes.allocator.allocator_setting import recipe_of
from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients

CHANGE: Final = Change(
    key="expandable_segments",
    name="expandable segments",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation="the allocator maps memory into segments that grow, so that pieces of free memory can be joined",
    excludes=frozenset({"max_split_size_mb"}),
    settings_for=lambda facts: Applicable(settings=("True",)),
    alloc_conf=lambda setting: f"expandable_segments:{setting}",
    recipe_for=lambda facts, setting: recipe_of(f"expandable_segments:{setting}"),
)
