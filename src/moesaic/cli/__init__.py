"""The command line: `moesaic`."""
