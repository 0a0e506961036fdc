"""Search for parallel layouts of a model that fit, such as 4-way data and 2-way tensor parallelism."""
