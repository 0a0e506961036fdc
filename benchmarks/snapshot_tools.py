"""Other tools for snapshots beside ullage: where they are had from, and programs that do one thing with either.

Each program reads argv[1], a snapshot. It answers the same question as the one beside it, and prints, as JSON, what
the work alone took once everything was imported: processor time (of several turns the shortest), memory beyond what
was there before the first turn, and a figure by which the two answers are compared.
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.real_cards.case import Origin
from benchmarks.real_cards.source import GITHUB, SourceError, fetched

KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage"
MOSAIC_ORIGIN = Origin(
    name="facebookresearch/mosaic", revision="67b27bb19660e009db47ad071fd377208732ad59", licence="BSD-3-Clause"
)
MOSAIC_NEEDS = ("pandas", "altair", "tabulate", "click", "omegaconf", "importlib_resources")

_WORK = """
import json, re, sys, time
from pathlib import Path
{imports}
path = Path(sys.argv[1])
def work():
{work}
def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # the high water begins anew
before = kib("VmRSS")
found = work()
beyond = kib("VmHWM") - before
def seconds():
    began = time.process_time()
    work()
    return time.process_time() - began
turns = [seconds()]
while len(turns) < 3 or sum(turns) < 0.3:
    turns.append(seconds())
print(json.dumps([min(turns), beyond / 1024, found]))
"""


def _program(imports: str, work: str) -> str:
    return _WORK.format(imports=imports, work="\n".join(f"    {line}" for line in work.strip().split("\n")))


_VIEWER = """
import importlib.util, pickle, runpy
viewer = runpy.run_path(str(Path(importlib.util.find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"))
"""
_HOLDING = """
import numpy.ma
from ullage.explaining.difference.holding import holding_at_end, holding_at_peak
from ullage.recorded.snapshot.snapshot import load_snapshot
"""

# Who holds what at the end. The figure: the bytes that were reserved, which the viewer's lines sum to.
END_OF_VIEWER = _program(
    _VIEWER,
    """
lines = viewer["memory"](pickle.loads(path.read_bytes()), format_flamegraph=lambda lines, script=None: lines)
return sum(int(line.rsplit(" ", 1)[1]) for line in lines.splitlines())
""",
)
END = _program(_HOLDING, "return holding_at_end(load_snapshot(path).devices.values()).reserved_bytes")

# When most was allocated, and who held it. The figure: how much that was; mosaic counts from 0, so it is not compared.
PEAK_OF_MOSAIC = _program(
    "import contextlib, io\nfrom mosaic.cmd.entry_point import get_memory_usage_peak",
    """
with contextlib.redirect_stdout(io.StringIO()) as said:
    get_memory_usage_peak(str(path), "", "", "alloc", False, True, False)
return len(said.getvalue()) and None
""",
)
PEAK = _program(_HOLDING, "return holding_at_peak(load_snapshot(path).devices.values()).allocated_bytes and None")


def mosaic() -> list[str]:
    """The folders from which mosaic is imported; none where it cannot be had."""
    try:
        source = fetched(MOSAIC_ORIGIN, KEPT / "rivals", os.environ.get("ULLAGE_REPOSITORIES", GITHUB))
        packages = KEPT / "rivals" / "mosaic-packages"
        if not (packages / ".ready").exists():
            wanted = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), *MOSAIC_NEEDS]
            subprocess.run(wanted, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            (packages / ".ready").touch()
    except (SourceError, subprocess.CalledProcessError) as error:
        print(f"     mosaic is left out: {error}")
        return []
    return [str(source), str(packages)]
