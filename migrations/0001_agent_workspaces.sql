-- Hosted servers are the rows with container_type = 'mcp_server'. The table may be shared: other container types belong
-- to other programs, so what only hosted servers need is asked of their rows alone, and a table that is already there
-- gets the columns it lacks.

CREATE TABLE IF NOT EXISTS kb.agent_workspaces (
    id uuid PRIMARY KEY,
    container_type text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE kb.agent_workspaces
    ADD COLUMN IF NOT EXISTS name text,
    ADD COLUMN IF NOT EXISTS provider text,       -- NULL: the daemon's default at each start
    ADD COLUMN IF NOT EXISTS image text,          -- NULL: the host's root file system
    ADD COLUMN IF NOT EXISTS desired text,
    ADD COLUMN IF NOT EXISTS definition jsonb,
    ADD COLUMN IF NOT EXISTS status text,
    ADD COLUMN IF NOT EXISTS restart_count bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS last_crash jsonb,
    ADD COLUMN IF NOT EXISTS last_error text,
    ADD COLUMN IF NOT EXISTS updated_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS last_used_at timestamptz;

-- NOT VALID: rows that were there before are left as they are; the daemon skips those it cannot read.
ALTER TABLE kb.agent_workspaces
    ADD CONSTRAINT agent_workspaces_mcp_server_complete CHECK (
        container_type <> 'mcp_server'
        OR (name IS NOT NULL AND desired IS NOT NULL AND definition IS NOT NULL AND status IS NOT NULL)
    ) NOT VALID,
    ADD CONSTRAINT agent_workspaces_mcp_server_name CHECK (
        container_type <> 'mcp_server' OR name ~ '^[a-z0-9-]{1,63}$'
    ) NOT VALID,
    ADD CONSTRAINT agent_workspaces_mcp_server_desired CHECK (
        container_type <> 'mcp_server' OR desired IN ('up', 'down')
    ) NOT VALID,
    ADD CONSTRAINT agent_workspaces_mcp_server_definition CHECK (
        container_type <> 'mcp_server' OR jsonb_typeof(definition) = 'object'
    ) NOT VALID,
    ADD CONSTRAINT agent_workspaces_mcp_server_restarts CHECK (
        container_type <> 'mcp_server' OR restart_count >= 0
    ) NOT VALID;

CREATE UNIQUE INDEX agent_workspaces_mcp_server_name_key
    ON kb.agent_workspaces (name) WHERE container_type = 'mcp_server';
