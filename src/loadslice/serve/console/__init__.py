"""The console: one page in the browser that shows a running server, and the data behind it."""
