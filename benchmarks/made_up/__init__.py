"""Programs of others on made-up weights and data."""
