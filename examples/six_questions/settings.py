"""Which allocator settings does a recorded run need least memory with?"""

import ullage

tuning = ullage.tune("tests/snapshots/variable_length_oom.pickle.gz", budget=5)
print(tuning.line)
