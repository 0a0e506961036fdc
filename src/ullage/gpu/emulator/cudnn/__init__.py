"""Ask the real cuDNN for the workspace sizes of its execution plans, without a GPU.

cuDNN 9.8 and newer can build plans for a GPU that is only described. cuDNN runs in a separate process (`planner`), so
that a crash does not affect the user's process.
"""
