"""The Python functions, such as `ullage.predict`, that do the same as ullage's commands. Their keywords are named like
the commands' options.
"""
