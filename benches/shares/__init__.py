"""The sections of scripts/bench-shares."""
