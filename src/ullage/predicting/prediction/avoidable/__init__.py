"""The search for GPU memory that is in use at a script's memory peak although the script could avoid it. The option
`Request.diagnose` requests this search.
"""
