"""Engines in processes of their own: a crash, a hang or a leak of a runtime stays inside.

Tensors go through shared memory that is made once for each slot; what goes through sockets is who, where and how
large. The shared memory has no name (``memfd``), so that whatever dies how, nothing is left to be cleaned up.
"""
