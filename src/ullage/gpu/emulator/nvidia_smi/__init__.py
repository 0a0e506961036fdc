"""The emulated nvidia-smi, for scripts and libraries that start the program nvidia-smi."""
