-- A token may be limited to projects, as it may be to servers.

ALTER TABLE kb.api_tokens
    ADD COLUMN projects text[] NOT NULL DEFAULT '{}';   -- empty, and no servers either: everything
