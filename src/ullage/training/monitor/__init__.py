"""Watches memory from step to step, and distinguishes leaks from warm-up, longer batches and fragmentation."""
