"""Code in the script's process that runs the script, measures its memory, and sends the result to the parent
process.
"""
