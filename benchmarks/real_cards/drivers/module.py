"""Run a file of a repository as `__main__` from where this is started, with models that are not drawn at random.

module.py SCRIPT [ARGUMENTS]
"""

import runpy
import sys
from pathlib import Path

import undrawn  # noqa: F401  for what it does when imported
import uninstalled  # noqa: F401  for what it does when imported

script = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(script).resolve().parent))
runpy.run_path(script, run_name="__main__")
