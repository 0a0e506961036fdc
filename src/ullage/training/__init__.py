"""What works inside the user's training process: `Guard`, `owners`, `release`, `isolated`, `Monitor`."""
