"""Forward and backward: which plan is tried after which, what fitted before, and ways that need less memory."""
