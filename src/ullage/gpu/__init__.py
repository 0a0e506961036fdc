"""The emulated GPU: CUDA that launches nothing, the journal of its memory, and the values that are read back."""
