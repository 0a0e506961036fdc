"""Records memory inside the processes of a run: samples, and evidence when a process runs out of memory."""
