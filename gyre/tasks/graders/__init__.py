"""Programs that grade inside a sandbox, copied into the tests they serve: standard library only, nothing of ours."""
