-- What belongs to projects: external servers, secrets, and records of tool calls. The tables may be a platform's own: then they
-- get the columns they lack, and rows that were there before are left as they are.

CREATE TABLE IF NOT EXISTS kb.project_mcp_servers (
    id uuid PRIMARY KEY,
    project_id text NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE kb.project_mcp_servers
    ADD COLUMN IF NOT EXISTS product_id text,
    ADD COLUMN IF NOT EXISTS description text,
    ADD COLUMN IF NOT EXISTS transport text,
    ADD COLUMN IF NOT EXISTS config jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS enabled boolean NOT NULL DEFAULT true,
    ADD COLUMN IF NOT EXISTS updated_at timestamptz NOT NULL DEFAULT now();

ALTER TABLE kb.project_mcp_servers
    ADD CONSTRAINT project_mcp_servers_transport CHECK (transport IN ('stdio', 'http', 'sse', 'ws')) NOT VALID,
    ADD CONSTRAINT project_mcp_servers_config CHECK (jsonb_typeof(config) = 'object') NOT VALID;

CREATE UNIQUE INDEX project_mcp_servers_name_key ON kb.project_mcp_servers (project_id, name);

-- Values are sealed: never themselves.
CREATE TABLE kb.project_secrets (
    project_id text NOT NULL,
    name text NOT NULL,
    sealed text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name)
);

CREATE TABLE IF NOT EXISTS kb.agent_run_tool_calls (
    id uuid PRIMARY KEY
);

-- Arguments are JSON as a client wrote it, and text, because any depth of it is stored.
ALTER TABLE kb.agent_run_tool_calls
    ADD COLUMN IF NOT EXISTS project_id text,
    ADD COLUMN IF NOT EXISTS server text,
    ADD COLUMN IF NOT EXISTS tool text,
    ADD COLUMN IF NOT EXISTS run_id text,
    ADD COLUMN IF NOT EXISTS principal text,
    ADD COLUMN IF NOT EXISTS arguments text,
    ADD COLUMN IF NOT EXISTS arguments_bytes bigint,
    ADD COLUMN IF NOT EXISTS is_error boolean,
    ADD COLUMN IF NOT EXISTS error_code text,
    ADD COLUMN IF NOT EXISTS outcome text,
    ADD COLUMN IF NOT EXISTS started_at timestamptz,
    ADD COLUMN IF NOT EXISTS duration_ms bigint,
    ADD COLUMN IF NOT EXISTS result_bytes bigint;

CREATE INDEX IF NOT EXISTS agent_run_tool_calls_by_project ON kb.agent_run_tool_calls (project_id, started_at DESC);
CREATE INDEX IF NOT EXISTS agent_run_tool_calls_by_time ON kb.agent_run_tool_calls (started_at);
