"""Find the allocator settings with which a recorded run needs least memory."""

import ullage

tuning = ullage.tune("tests/snapshots/variable_length_oom.pickle.gz", budget=5)
print(tuning.line)
