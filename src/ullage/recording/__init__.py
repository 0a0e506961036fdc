"""What a run leaves behind while it runs: samples of its memory, and evidence where it runs out."""
