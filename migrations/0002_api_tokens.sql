-- Bearer tokens: their SHA-256, never themselves. `servers` empty: all servers.

CREATE TABLE kb.api_tokens (
    id uuid PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (name <> ''),
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    scopes text[] NOT NULL,
    servers text[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
