"""Memory during a guarded step: out-of-memory errors, ways to free memory, and retries of single operations."""
