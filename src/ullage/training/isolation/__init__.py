"""`ullage.isolated` runs a function in a separate process. All memory that the function uses is freed when the process
ends.
"""
