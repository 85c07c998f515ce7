"""A cell: an engine and a trainer that take turns on one accelerator."""
