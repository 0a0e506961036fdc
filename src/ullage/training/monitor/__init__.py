"""`ullage.Monitor`: watches memory from step to step, and distinguishes leaks from warm-up, longer batches,
fragmentation.
"""
