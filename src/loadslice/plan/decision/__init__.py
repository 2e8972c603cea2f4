"""What to do, by the method's questions, and what to believe where they and the simulated fleets differ."""
