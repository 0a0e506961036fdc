"""Search for the parallel layouts of a model that fit on a given number of GPUs. An example is 4-way data and 2-way
tensor parallelism.
"""
