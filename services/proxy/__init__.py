"""The proxy: harnesses' model calls in, recorded calls out."""
