"""Vendors' compilers behind one door: each in an environment of its own, asked by a script in a subprocess.

They live in this room because a compiler is how one gets to a runtime; `graph` only reads what they said.
"""
