"""Which operator runs on which device: exact and greedy assignments on plain arrays."""
