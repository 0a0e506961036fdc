"""`ullage watch`: a live view of the GPUs and of the processes on them."""
