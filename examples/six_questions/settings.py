"""With which allocator settings does a recorded run need the least memory?"""

import ullage

tuning = ullage.tune("tests/snapshots/variable_length_oom.pickle.gz", budget=5)
print(tuning.line)
