"""The search over parallel layouts, without an emulated card."""
