"""A virtual-time shell around the policy core."""
