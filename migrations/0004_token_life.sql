-- A token may have an end, and a rate of its own. After it was rotated the hash before it may go on for a while.

ALTER TABLE kb.api_tokens
    ADD COLUMN expires_at timestamptz,            -- NULL: never
    ADD COLUMN last_used_at timestamptz,
    ADD COLUMN previous_hash bytea CHECK (octet_length(previous_hash) = 32),
    ADD COLUMN previous_until timestamptz,
    ADD COLUMN rate_per_second integer CHECK (rate_per_second > 0),
    ADD COLUMN rate_burst integer CHECK (rate_burst > 0);
