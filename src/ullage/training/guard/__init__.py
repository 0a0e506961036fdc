"""`ullage.Guard` runs training steps. If GPU memory runs out, it undoes and retries the step."""
