"""The emulated card beside real ones: what others recorded and published, run again, and compared to the byte.

`python -m benchmarks.real_cards.run` is the command (`make real`). A module a source (`recordings.py`, ...) with its
cases as data in a toml beside it; the rest is shared: `case.py` what a case and its result are, `source.py` where files
come from, `environment.py` the environments that cases run in, `bench.py` how one is run, `table.py` the page.
"""
