"""What we say: frozen value types with units, and the files we read and write."""
