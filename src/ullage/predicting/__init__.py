"""Commands that run the script on the emulated GPU to answer questions about a real run before it starts."""
