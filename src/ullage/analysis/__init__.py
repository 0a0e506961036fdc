"""What a recorded run says: who held memory, why a request failed, what would have let it through."""
