"""Run a script on the emulated card, as its author ran it on a real one. Started by `bench.py` in a process of its own.

    python child.py CARD SCRIPT [ARGUMENTS]

CARD holds the arguments of `ullage.emulate` as JSON, and how many CPUs Python is to count (`cpus`, where the real
machine's number decides: libraries start threads by it). The script may be somebody else's, unmodified, or a driver of
this folder. The folders in PYTHONPATH are found first.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import ullage

card, script, *arguments = sys.argv[1:]
sys.path[0] = str(Path(script).resolve().parent)  # as `python SCRIPT` has it; it was this file's folder
sys.argv = [script, *arguments]
settings = json.loads(card)
cpus = settings.pop("cpus", None)
if cpus is not None:
    os.cpu_count = lambda: cpus
ullage.emulate(**settings)
runpy.run_path(script, run_name="__main__")
