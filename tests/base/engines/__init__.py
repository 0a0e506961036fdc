"""Work in threads, in jobs and on Ray."""
