"""Compare two snapshots: list the lines of code whose memory grew."""

import ullage

difference = ullage.diff("tests/snapshots/normal.pickle.gz", "tests/snapshots/loss_leak.pickle.gz")
for line in difference.lines[:3]:
    print(line.name, f"{line.after_bytes - line.before_bytes:+,} bytes")
