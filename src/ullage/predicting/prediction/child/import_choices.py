"""What is chosen for a script right before it imports torch: the allocator's settings, and how many cards it sees."""

import os
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, Final

from ullage.base.errors import UsageError
from ullage.gpu.emulator import library
from ullage.gpu.emulator.cudnn.start import version_of
from ullage.gpu.emulator.emulate import Emulation
from ullage.gpu.emulator.torch_build import TorchBuild
from ullage.recorded.settings import VARIABLES

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def choose_allocator_settings(
    wanted: str | None, environment: Mapping[str, str | None], note: Callable[[str], None]
) -> None:
    """Put --alloc-conf in place of what the script or its environment says.

    Args:
        wanted: the text of --alloc-conf; None: there is none.
        environment: the allocator's variables as they were before the script ran.
        note: called with what has to be told.
    """
    if wanted is None:
        return
    for name, before in environment.items():
        if os.environ.get(name) != before:
            note(f"the script sets {name}={os.environ.get(name)}; --alloc-conf took its place")
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = wanted


def check_allocator_settings(wanted: str | None, torch: Any) -> None:
    """Have PyTorch read an --alloc-conf, which it would do only at the first allocation.

    Raises:
        UsageError: it cannot.
    """
    if wanted is None or not torch.cuda.is_available():
        return
    try:
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: None)  # has the allocator read its settings
    except (ValueError, RuntimeError) as error:
        first_line = str(error).partition("\n")[0]
        raise UsageError(f"--alloc-conf {wanted!r} cannot be read by PyTorch: {first_line}") from error


def choose_cards(emulation: Emulation, torch: TorchBuild, note: Callable[[str], None]) -> None:
    """Show as many cards as the script chose with CUDA_VISIBLE_DEVICES: whichever they are, they are the same."""
    text = os.environ.get(_VISIBLE)
    if text is None:
        return
    chosen = takewhile(lambda name: name.strip() and not name.strip().startswith("-"), text.split(","))
    count = min(len(list(chosen)), emulation.count)
    if not count:
        note(f"the script hides every GPU from torch with {_VISIBLE}={text!r}")
    os.environ[_VISIBLE] = ",".join(str(index) for index in range(count))
    library.describe_cards(
        emulation.gpu,
        emulation.figures,
        count=count,
        cuda_number=torch.cuda_number,
        cudnn=version_of(torch),
    )
