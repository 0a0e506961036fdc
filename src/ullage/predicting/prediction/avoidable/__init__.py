"""The search for GPU memory that a script could avoid at its memory peak. The option `Request.diagnose` requests it."""
