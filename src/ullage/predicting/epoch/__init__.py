"""A whole epoch foreseen: every batch of a loader known beforehand, few steps run, and the rest replayed."""
