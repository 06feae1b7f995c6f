"""The sections of scripts/bench-scale. Each starts what it measures and leaves nothing behind."""
