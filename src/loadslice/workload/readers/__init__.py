"""One file per trace format; each turns a file into `parsed.Parsed`."""
