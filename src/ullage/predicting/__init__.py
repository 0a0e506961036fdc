"""Commands that answer questions about a run before it starts, by running the script on the emulated GPU."""
