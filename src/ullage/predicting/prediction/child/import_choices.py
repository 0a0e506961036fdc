"""Set the allocator options and the number of visible GPUs before a script imports torch."""

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
    """Replace the script's allocator settings with the value of --alloc-conf.

    Args:
        wanted: the value of --alloc-conf; None: it was not given.
        environment: the allocator's environment variables before the script ran.
        note: called with a remark for the report.
    """
    if wanted is None:
        return
    for name, before in environment.items():
        if os.environ.get(name) != before:
            note(f"the script sets {name}={os.environ.get(name)}, which --alloc-conf replaced")
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = wanted


def check_allocator_settings(wanted: str | None, torch: Any) -> None:
    """Make PyTorch parse the allocator settings before the first allocation.

    Raises:
        UsageError: PyTorch cannot parse the settings.
    """
    if wanted is None or not torch.cuda.is_available():
        return
    try:
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: None)  # makes the allocator parse its settings
    except (ValueError, RuntimeError) as error:
        first_line = str(error).partition("\n")[0]
        raise UsageError(f"PyTorch cannot parse alloc_conf={wanted!r}: {first_line}") from error


def choose_cards(emulation: Emulation, torch: TorchBuild, note: Callable[[str], None]) -> None:
    """Make as many GPUs visible as CUDA_VISIBLE_DEVICES lists."""
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
