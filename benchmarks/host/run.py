"""The host's memory that `ullage predict` tells, beside the kernel's own high water of the same script unobserved.

The unobserved run is the script under `ullage.emulate` alone, with no values: nothing watches it. It is run three
times, because malloc keeps what was freed or not by chance. Prints a table; exit code 1 where a figure is more than 5 %
beyond all of them, or pinned bytes are not `torch.cuda.host_memory_stats()`'s to the byte.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
BOUND = 0.05
RUNS = 3
_MIB = 1 << 20
_UNOBSERVED = """
import json, runpy, sys
import ullage
ullage.emulate("H100", values="off")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
import torch
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
stats = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
told = {"high": int(status["VmHWM"].split()[0]) * 1024, "pinned": stats.get("allocated_bytes.peak", 0)}
print("@" + json.dumps(told))
"""


def unobserved(script: Path) -> dict[str, int]:
    """Run a script that nobody watches: its own high water, and PyTorch's own count of pinned bytes."""
    done = subprocess.run([sys.executable, "-c", _UNOBSERVED, str(script)], capture_output=True, text=True, check=True)
    told: dict[str, int] = json.loads(done.stdout.rsplit("@", 1)[1])
    return told


def predicted(script: Path) -> dict[str, int]:
    """What `ullage predict` says of the host."""
    command = [sys.executable, "-m", "ullage", "predict", "--gpu", "H100", "--json", "--draws", "1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    host: dict[str, int] = json.loads(done.stdout)["host"]
    return host


def main(names: list[str]) -> int:
    """Compare the scripts with these names, or all."""
    failed = 0
    columns = ("script", "unobserved", "predicted", "off the median", "added", "pinned", "workers")
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for script in sorted(SCRIPTS.glob("*.py")):
        if names and script.stem not in names:
            continue
        truths, host = [unobserved(script) for _ in range(RUNS)], predicted(script)
        highs, pinned = [truth["high"] for truth in truths], truths[0]["pinned"]
        found = host["resident_peak_bytes"]
        off = found / min(max(found, min(highs)), max(highs)) - 1
        failed += abs(off) > BOUND or host["pinned_peak_bytes"] != pinned
        is_same = "PyTorch's own" if host["pinned_peak_bytes"] == pinned else f"PyTorch: {pinned:,} B"
        cells = (
            f"{min(highs) / _MIB:.0f} to {max(highs) / _MIB:.0f} MiB",
            f"{found / _MIB:.0f} MiB",
            f"{found / statistics.median(highs) - 1:+.1%}" + ("" if off else ", within"),
            f"{host['own_bytes'] / _MIB:.0f} MiB",
            f"{host['pinned_peak_bytes']:,} B, {is_same}" if pinned or host["pinned_peak_bytes"] else "0 B",
            f"{host['workers']}: {host['workers_bytes'] / _MIB:.0f} MiB" if host["workers"] else "0",
        )
        print(f"| {script.stem} | {' | '.join(cells)} |", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
