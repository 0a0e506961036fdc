"""How a setting of PyTorch's allocator is written."""

from ullage.predicting.editing.edit import Recipe


def recipe_of(options: str) -> Recipe:
    """Return the recipe for options of the allocator, which a variable of the environment sets."""
    line = f"export PYTORCH_CUDA_ALLOC_CONF={options}"
    return Recipe(snippet=line, environment=line)
