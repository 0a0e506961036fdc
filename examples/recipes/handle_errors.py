"""Catch the errors of ullage: each is a subclass of ullage.UllageError."""

import ullage

for gpu in ("RTX 4900", "T4"):
    try:
        ullage.predict("no_such_script.py", gpu=gpu)
    except ullage.UnknownGpuError as error:
        print("unknown GPU:", error)
    except ullage.UsageError as error:
        print("usage:", error)
