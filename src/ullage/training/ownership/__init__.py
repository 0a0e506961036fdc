"""`ullage.owners` lists the Python objects that hold GPU memory. `ullage.release` frees their memory."""
