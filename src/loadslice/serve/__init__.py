"""A live shell around the policy core: front, workers, journal."""
