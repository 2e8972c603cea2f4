"""Fleet and placement search with the simulator as the judge."""
