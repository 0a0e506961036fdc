"""Memory during a guarded step: which errors are out-of-memory errors, how memory is freed, and how single operations
are retried.
"""
