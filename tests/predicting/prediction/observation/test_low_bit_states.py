"""The note on states of 8-bit optimizers that have full precision. The rules are those of the libraries.

Where a library is not installed, an optimizer with the library's attributes and rules takes its place.
"""

from importlib.util import find_spec
from typing import Any

import pytest

from tests.shared.inside import inside


def _optimizer(library: str, shapes: list[list[int]], *, bits: int = 8, overrides: int = 0) -> Any:
    """Return an optimizer with one state of each parameter, as the library would create it."""
    from types import SimpleNamespace

    import torch

    if library == "bitsandbytes":

        class Optimizer(torch.optim.SGD):
            args = None

        def is_full(number: int, elements: int) -> bool:
            return bits != 8 or elements < 4096 or number < overrides

    else:

        class Optimizer(torch.optim.SGD):  # type: ignore[no-redef]
            _subclass_zeros = None

        def is_full(number: int, elements: int) -> bool:
            return elements < 4096 or elements % 256 != 0

    Optimizer.__module__ = f"{library}.optim.adam"
    weights = [torch.nn.Parameter(torch.empty(shape)) for shape in shapes]
    optimizer: Any = Optimizer(weights, lr=0.1)
    optimizer.args = SimpleNamespace(optim_bits=bits, min_8bit_size=4096)
    optimizer.block_size = 256
    for number, weight in enumerate(weights):
        kind = torch.float32 if is_full(number, weight.numel()) else torch.uint8
        optimizer.state[weight]["state1"] = torch.zeros(weight.shape, dtype=kind)
    return optimizer


@pytest.mark.parametrize(
    ("library", "shapes", "options", "expected"),
    [
        ("torchao", [[5001, 129], [1024, 1024]], {}, "2.5 MiB for 1 parameter whose number of elements is not"),
        ("torchao", [[1000], [2000]], {}, "11.7 KiB for 2 parameters with fewer than 4,096 elements, 4.0 bytes"),
        ("torchao", [[1000], [1024, 1024]], {}, ""),  # less than a hundredth
        ("bitsandbytes", [[4095], [64, 64]], {}, "16.0 KiB for 1 parameter with fewer than 4,096 elements"),
        ("bitsandbytes", [[512, 512], [512, 512]], {"overrides": 1}, "1.0 MiB for 1 parameter that GlobalOptimManager"),
        ("bitsandbytes", [[512, 512]], {"bits": 32}, ""),
        ("torch", [[1000]], {}, ""),
    ],
)
@inside
def test_the_note_names_the_bytes_and_the_reason(
    library: str, shapes: list[list[int]], options: dict[str, Any], expected: str
) -> None:
    from ullage.predicting.prediction.observation.low_bit_states import notes_on_states

    notes = notes_on_states([_optimizer(library, shapes, **options)])
    assert len(notes) == bool(expected), notes
    assert not expected or expected in notes[0], notes


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@inside
def test_the_note_on_a_real_optimizer_of_bitsandbytes() -> None:
    import bitsandbytes
    import torch

    from ullage.predicting.prediction.observation.low_bit_states import notes_on_states

    weights = [torch.nn.Parameter(torch.zeros(size, device="cuda")) for size in (4000, 1 << 16)]
    optimizer = bitsandbytes.optim.Adam8bit(weights)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    (note,) = notes_on_states([optimizer])
    assert "31.2 KiB for 1 parameter with fewer than 4,096 elements, 8.0 bytes per element" in note
