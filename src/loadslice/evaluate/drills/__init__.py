"""Drills: a pipeline is broken on purpose, in virtual time or on a live server, and its promises are looked at."""
