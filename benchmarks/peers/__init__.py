"""Servers that `serve_bench` is compared with, and the client that asks all of them alike."""
