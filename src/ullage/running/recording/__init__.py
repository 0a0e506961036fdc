"""Records memory inside the process of a run: samples, and evidence when memory runs out."""
