"""`ullage.Guard` runs training steps. If GPU memory runs out, it undoes the step and retries it."""
