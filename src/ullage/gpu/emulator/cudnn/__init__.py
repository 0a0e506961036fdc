"""Get execution plans from the real cuDNN without a GPU. cuDNN runs on the CPU and plans for a GPU described to it.

cuDNN 9.8 and newer can plan for a described device ("deviceless", ahead of time). cuDNN runs in a separate process
(`planner`), so that a crash in it does not affect the user's process. The emulated cuDNN of `../cuda` sends it the
graphs that torch builds.
"""
