"""Reports and their renderers. Nothing here knows what was computed."""
