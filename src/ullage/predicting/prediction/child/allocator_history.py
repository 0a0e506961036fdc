"""PyTorch's own history of its allocator, recorded from the moment CUDA is initialised, and kept so."""

import inspect
from typing import Any, Final

_ENTRIES: Final = 1_200_000  # three for each block: asked for, freed, free again


class AllocatorHistory:
    """The history that a run records; a script that records its own reads the same one."""

    def __init__(self, torch: Any, *, with_stacks: bool, with_frees: bool) -> None:
        """Record from now on.

        Args:
            torch: the module.
            with_stacks: whether each entry has a stack; without one an entry costs a fraction.
            with_frees: whether frees are recorded, where this PyTorch can leave them out; they cost as much again.
        """
        self._memory = torch.cuda.memory
        self._start = self._memory._record_memory_history
        self._parameters = inspect.signature(self._memory._record_memory_history_impl).parameters
        self._wanted: dict[str, Any] = {"context": "alloc", "stacks": "python"} if with_stacks else {"context": None}
        self.has_frees = with_frees or "skip_actions" not in self._parameters
        if not self.has_frees:
            self._wanted["skip_actions"] = ["free_requested", "free_completed"]
        torch.cuda._lazy_call(self._begin)
        self._memory._record_memory_history = lambda *arguments, **keywords: None

    @property
    def entries_of_a_block(self) -> int:
        """The number of entries that a block leaves in the history."""
        return 3 if self.has_frees else 1

    def _begin(self) -> None:
        self._start(enabled="all", max_entries=_ENTRIES, **self._wanted)

    def clear(self) -> None:
        """Forget what was recorded, and go on."""
        if "clear_history" in self._parameters:
            self._start(enabled="all", max_entries=_ENTRIES, clear_history=True, **self._wanted)
        else:  # older ones forget when they stop
            self._start(enabled=None)
            self._begin()

    def give_back(self) -> None:
        """Let the script's own calls start and stop the history again."""
        self._memory._record_memory_history = self._start
