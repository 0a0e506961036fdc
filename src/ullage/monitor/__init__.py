"""Memory watched from step to step: leaks told from warm-up, longer batches and fragmentation."""
