-- One daemon at a time works on a database. Each that takes it over begins an epoch, and its session says which; what is
-- written in the name of an epoch that is over is refused. Whoever says nothing (psql, other programs) is not asked.

CREATE TABLE kb.daemon (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    home uuid NOT NULL,
    host text NOT NULL,
    data_dir text NOT NULL,
    kernel text NOT NULL,
    since timestamptz NOT NULL DEFAULT now()
);

-- FOR SHARE: whoever takes over waits for what is being written, and whoever writes then sees who has taken over.
CREATE FUNCTION kb.refuse_former_daemon() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    now_is bigint;
BEGIN
    SELECT epoch INTO now_is FROM kb.daemon FOR SHARE;
    IF now_is IS DISTINCT FROM current_setting('stdiod.epoch')::bigint THEN
        RAISE EXCEPTION 'another stdiod has taken this database over (epoch %, and this is of epoch %)',
            now_is, current_setting('stdiod.epoch') USING ERRCODE = 'SD001';
    END IF;
    RETURN NULL;
END $$;

DO $$
DECLARE
    fenced text;
BEGIN
    FOREACH fenced IN ARRAY ARRAY['agent_workspaces', 'api_tokens', 'volume_removals', 'project_mcp_servers', 'project_secrets',
        'agent_run_tool_calls']
    LOOP
        EXECUTE format('CREATE TRIGGER stdiod_epoch BEFORE INSERT OR UPDATE OR DELETE ON kb.%I FOR EACH STATEMENT
            WHEN (current_setting(''stdiod.epoch'', true) <> '''') EXECUTE FUNCTION kb.refuse_former_daemon()', fenced);
    END LOOP;
END $$;
