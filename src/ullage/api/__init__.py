"""The Python functions, such as `ullage.predict`, that do the same as ullage's commands. Their keyword arguments have
the names of the commands' options.
"""
