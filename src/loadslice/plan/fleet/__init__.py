"""Which engines, and how many: an exact mix by mixed-integer programming, judged by simulating the recorded traffic."""
