"""What a fleet costs over the years, how much power it may draw, and what a thousand inferences cost."""
