"""Commands that watch a run from outside or examine the machine: `run`, `watch`, exports and `doctor`."""
