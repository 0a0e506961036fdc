"""Plans of the real cuDNN without a card: the library runs on the CPU and plans for a card described to it.

cuDNN 9.8 and newer plan for a described device ("deviceless", ahead of time). It is asked in a process of its own
(`planner`), so that whatever happens in it stays there; the emulated cuDNN of `../cuda` sends what torch has built.
"""
