"""The command line: `moesaic`, one file per command. Only the answer goes to stdout."""
