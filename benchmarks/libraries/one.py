"""Run one library's script on an emulated card, in this fresh process, and write what was counted as JSON.

python benchmarks/libraries/one.py SCRIPT CARD ANSWER DISTRIBUTION
"""

import importlib.metadata
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

import ullage


def main() -> None:
    script, card, answer, distribution = sys.argv[1:]
    emulation = ullage.emulate(card)
    import torch
    from counted import Counted

    from ullage.gpu.emulator import library

    torch.ones(1, device="cuda")
    counted = Counted(emulation.context_bytes)
    spec = importlib.util.spec_from_file_location("script_of_a_library", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["script_of_a_library"] = module
    spec.loader.exec_module(module)
    module.run(counted)
    torch.cuda.synchronize()
    counted.look()
    Path(answer).write_text(
        json.dumps(
            {
                "version": importlib.metadata.version(distribution) if distribution else "",
                "torch": torch.__version__,
                "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
                "outside_bytes": counted.outside_bytes,
                "checks": [asdict(check) for check in counted.checks],
                "unwritten": library.unwritten_functions(),
            }
        )
    )


main()
