"""What grew from one snapshot to another."""
