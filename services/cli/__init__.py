"""The command line, a module a command: parse, hand over, print."""
