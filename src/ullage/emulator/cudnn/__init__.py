"""cuDNN's own plans without a card: the real library, asked on the CPU about a card that is described to it.

cuDNN 9.8 and newer plan for a described device ("deviceless", ahead of time). It is asked in a process of its own
(`server`), so that whatever happens in it stays there; the emulated cuDNN of `../cuda` sends what torch has built.
"""
